// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/option_check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/host_floats.h"
#include "fsdp/optim/host_step.h"
#include "fsdp/optim/newton_schulz.h"
#include "fsdp/optim/param_groups.h"
#include "fsdp/optim/state_buffers.h"
#include "fsdp/optim/update_ops.h"

namespace fsdp {
namespace {

constexpr char kName[] = "Muon";

// A hyperparameter as a number, for its name.
struct Field {
  std::string_view name;
  double (*get)(const MuonOptions&);
  void (*set)(MuonOptions&, double);
};

// In the order of PyTorch's param_groups.
constexpr Field kFields[] = {
    {"lr", [](const MuonOptions& o) { return o.lr; }, [](MuonOptions& o, double v) { o.lr = v; }},
    {"weight_decay", [](const MuonOptions& o) { return o.weight_decay; },
     [](MuonOptions& o, double v) { o.weight_decay = v; }},
    {"momentum", [](const MuonOptions& o) { return o.momentum; }, [](MuonOptions& o, double v) { o.momentum = v; }},
    {"nesterov", [](const MuonOptions& o) { return o.nesterov ? 1.0 : 0.0; },
     [](MuonOptions& o, double v) { o.nesterov = v != 0; }},
    {"ns_a", [](const MuonOptions& o) { return o.ns_coefficients[0]; },
     [](MuonOptions& o, double v) { o.ns_coefficients[0] = v; }},
    {"ns_b", [](const MuonOptions& o) { return o.ns_coefficients[1]; },
     [](MuonOptions& o, double v) { o.ns_coefficients[1] = v; }},
    {"ns_c", [](const MuonOptions& o) { return o.ns_coefficients[2]; },
     [](MuonOptions& o, double v) { o.ns_coefficients[2] = v; }},
    {"eps", [](const MuonOptions& o) { return o.eps; }, [](MuonOptions& o, double v) { o.eps = v; }},
    {"ns_steps", [](const MuonOptions& o) { return static_cast<double>(o.ns_steps); },
     [](MuonOptions& o, double v) { o.ns_steps = static_cast<int>(v); }},
    {"adjust_lr_fn", [](const MuonOptions& o) { return static_cast<double>(o.adjust_lr_fn); },
     [](MuonOptions& o, double v) { o.adjust_lr_fn = static_cast<AdjustLr>(static_cast<int>(v)); }},
};

const Field* FieldOf(std::string_view name) {
  for (const Field& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

// torch.optim.Muon's _adjust_lr: kOriginal is Keller Jordan's, kMatchRmsAdamw makes the update as large as AdamW's, so
// that its learning rate and decay can be used.
double Adjusted(double lr, AdjustLr adjust, const Shape& shape) {
  const auto a = static_cast<double>(shape.dim(0)), b = static_cast<double>(shape.dim(1));
  switch (adjust) {
    case AdjustLr::kOriginal:
      return lr * std::sqrt(std::max(1.0, a / b));
    case AdjustLr::kMatchRmsAdamw:
      return lr * 0.2 * std::sqrt(std::max(a, b));
    case AdjustLr::kSpectralUnclamped:
      return lr * std::sqrt(a / b);
  }
  return lr;
}

}  // namespace

absl::Status Validate(const MuonOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckNotNegative("lr", options.lr));
  FSDP_RETURN_IF_ERROR(CheckNotNegative("weight_decay", options.weight_decay));
  FSDP_RETURN_IF_ERROR(CheckNotNegative("momentum", options.momentum));
  for (const double coefficient : options.ns_coefficients) {
    FSDP_RETURN_IF_ERROR(CheckFiniteOption("ns_coefficients", coefficient));
  }
  FSDP_RETURN_IF_ERROR(CheckNotNegative("eps", options.eps));
  if (options.ns_steps >= 0 && options.ns_steps < 100) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ns_steps is ", options.ns_steps, ": expected at least 0 and fewer than 100"));
}

Muon::Muon(std::vector<ShardedParameter*> parameters, const MuonOptions& options,
           std::shared_ptr<ShardExchange> exchange)
    : Muon(std::vector<Group>{{std::move(parameters), options}}, std::move(exchange)) {}

Muon::Muon(std::vector<Group> groups, std::shared_ptr<ShardExchange> exchange)
    : Optimizer(ParametersOf(groups), {"momentum_buffer"}),
      groups_(std::move(groups)),
      exchange_(std::move(exchange)) {}

Muon::~Muon() = default;

absl::Status Muon::AddParamGroup(Group group) {
  FSDP_RETURN_IF_ERROR(ValidateGroup(kName, groups_.size(), group.options));
  FSDP_RETURN_IF_ERROR(Annotate(AddParameters(group.parameters), kName));
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

// A slice of a matrix is not enough: the update of one element depends on all of them.
absl::Status Muon::CheckParameter(const ShardedParameter& parameter) const {
  FSDP_RETURN_IF_ERROR(CheckWhole(kName, parameter, exchange_.get()));
  if (parameter.shape.rank() == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Muon: parameter \"", parameter.fqn, "\" ", parameter.shape.ToString(),
                                                 " is no matrix: expected two dimensions; give it to AdamW"));
}

// Matrix after matrix: each is gathered, orthogonalised on every rank and updated in this rank's slice before the next
// one is, so only one whole matrix is in memory. Collectives need all ranks to take the same order, which is the order
// of the parameters.
absl::Status Muon::Step(Stream& stream) {
  FSDP_RETURN_IF_ERROR(ValidateGroups(kName, groups_));
  FSDP_ASSIGN_OR_RETURN(const std::vector<size_t> indices, ParametersToUpdate());
  if (indices.empty()) {
    FinishStep(indices);
    return absl::OkStatus();
  }
  FSDP_RETURN_IF_ERROR(CheckOnHost(kName, indices));
  for (const size_t i : indices) FSDP_RETURN_IF_ERROR(CheckParameter(*parameters()[i]));
  if (newton_schulz_ == nullptr) {
    FSDP_ASSIGN_OR_RETURN(newton_schulz_, NewtonSchulz::Create(*parameters()[indices[0]]->device));
  }
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  const bool skips = Skips(ExtrasOf(indices[0]));
  for (const size_t i : indices) {
    if (!skips) FSDP_RETURN_IF_ERROR(Update(i));
    FSDP_RETURN_IF_ERROR(RefreshCopy(parameters()[i]->data, parameters()[i]->compute_copy));
  }
  FinishStep(indices);
  return absl::OkStatus();
}

// PyTorch's order of operations: momentum, orthogonalisation, decay, update.
absl::Status Muon::Update(size_t index) {
  const ShardedParameter& parameter = *parameters()[index];
  const MuonOptions& options = groups_[group_of(index)].options;
  FSDP_RETURN_IF_ERROR(state().Create(index));
  FSDP_ASSIGN_OR_RETURN(std::vector<float> update, GradientOf(parameter, ExtrasOf(index)));
  FSDP_ASSIGN_OR_RETURN(HostFloats momentum_buffer, HostFloats::Of(state().slice(0, index)));
  FSDP_ASSIGN_OR_RETURN(HostFloats data, HostFloats::Of(parameter.data));
  float* const buffer = momentum_buffer.data();
  const auto rest = static_cast<float>(1 - options.momentum), momentum = static_cast<float>(options.momentum);
  for (size_t i = 0; i < update.size(); ++i) {
    buffer[i] = Lerp(buffer[i], update[i], rest);
    update[i] = options.nesterov ? Lerp(update[i], buffer[i], momentum) : buffer[i];
  }
  std::vector<float> whole;
  if (exchange_ == nullptr) {
    whole = std::move(update);
  } else {
    FSDP_RETURN_IF_ERROR(Annotate(exchange_->Gather(parameter, update, whole), kName));
  }
  FSDP_RETURN_IF_ERROR(
      newton_schulz_->Run({.coefficients = options.ns_coefficients, .steps = options.ns_steps, .eps = options.eps},
                          parameter.shape.dim(0), parameter.shape.dim(1), whole));
  const auto keep = static_cast<float>(1 - options.lr * options.weight_decay);
  const auto scale = static_cast<float>(-Adjusted(options.lr, options.adjust_lr_fn, parameter.shape));
  float* const p = data.data();
  const float* const own = whole.data() + parameter.interval.begin;
  for (int64_t i = 0; i < parameter.interval.size(); ++i) p[i] = p[i] * keep + scale * own[i];
  const std::optional<StochasticRounding> rounding = ExtrasOf(index).rounding;
  FSDP_RETURN_IF_ERROR(momentum_buffer.Store(rounding, {.number = 1}));
  return data.Store(rounding, {.number = 0});
}

std::vector<ParamGroupState> Muon::FormulaGroups() const {
  std::vector<ParamGroupState> states;
  for (size_t g = 0; g < groups_.size(); ++g) {
    states.push_back({GroupNames(g), {}});
    for (const Field& field : kFields) {
      states.back().values.emplace_back(field.name, field.get(groups_[g].options));
    }
  }
  return states;
}

absl::Status Muon::CheckFormula(size_t group, std::string_view name, double value) const {
  FSDP_RETURN_IF_ERROR(CheckGroup(kName, group));
  const Field* const field = FieldOf(name);
  if (field == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("Muon has no hyperparameter \"", std::string(name),
                     "\"; it has lr, weight_decay, momentum, nesterov, ns_a, ns_b, ns_c, eps, ns_steps, adjust_lr_fn"));
  }
  const bool is_whole = name == "ns_steps" || name == "adjust_lr_fn";
  const double most = name == "ns_steps" ? 99 : static_cast<double>(AdjustLr::kSpectralUnclamped);
  // Before it is converted: a double may not fit an int.
  if (is_whole && !(value >= 0 && value <= most && value == std::floor(value))) {
    return absl::InvalidArgumentError(absl::StrCat(kName, ", param group ", group, ": ", std::string(name), " is ",
                                                   value, ": expected a whole number from 0 to ", most));
  }
  MuonOptions options = groups_[group].options;
  field->set(options, value);
  return ValidateGroup(kName, group, options);
}

void Muon::AssignFormula(size_t group, std::string_view name, double value) {
  FieldOf(name)->set(groups_[group].options, value);
}

}  // namespace fsdp
