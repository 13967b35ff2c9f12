// SPDX-License-Identifier: Apache-2.0
//
// Step collects one AdamWUpdate for each parameter that has a gradient and puts them on the stream as one call, so that
// a device may run hundreds of small slices in one launch. All scalars of a step are computed on the host in float64
// and rounded once.
//
// In a captured step the scalars cannot be arguments, since a replay repeats its arguments: learning rate and bias
// corrections would keep the values of the capture. There the kernels read them from live_scalars_, which
// CopyScalarsToDevice fills before each replay.
#include "fsdp/optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/option_check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/param_groups.h"
#include "fsdp/optim/state_buffers.h"
#include "fsdp/optim/update_ops.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {
namespace {

constexpr char kName[] = "AdamW";
constexpr char kLargest[] = "max_exp_avg_sq";
constexpr int64_t kScalars = sizeof(AdamWScalars) / sizeof(float);

// m and v start at 0, so after t steps they are means over weights that sum to 1 - beta^t and not to 1. Dividing by
// that sum is the bias correction (Kingma and Ba, "Adam", 2015, section 3). It is folded into two scalars, one for each
// mean, so that the kernels need no division for m and none under the root of v:
//
//   lr (m / c1) / (sqrt(v / c2) + eps) = (lr / c1) m / (sqrt(v) / sqrt(c2) + eps)
//
// Weight decay does not pass through m and v (it is decoupled): Adam would divide it by sqrt(v), so that weights with
// large gradients would decay less.
AdamWScalars ScalarsOf(const AdamWOptions& options, int64_t step) {
  const double bias_correction1 = 1 - std::pow(options.beta1, static_cast<double>(step));
  const double bias_correction2 = 1 - std::pow(options.beta2, static_cast<double>(step));
  return {
      .negative_decay = options.decoupled_weight_decay ? static_cast<float>(-(options.lr * options.weight_decay)) : 0,
      .one_minus_beta1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta2 = static_cast<float>(1 - options.beta2),
      .negative_step_size = static_cast<float>(-(options.lr / bias_correction1)),
      .sqrt_bias_correction2 = static_cast<float>(std::sqrt(bias_correction2)),
      .eps = static_cast<float>(options.eps)};
}

constexpr NumberField<AdamWOptions> kFields[] = {
    {"lr", &AdamWOptions::lr},
    {"beta1", &AdamWOptions::beta1},
    {"beta2", &AdamWOptions::beta2},
    {"eps", &AdamWOptions::eps},
    {"weight_decay", &AdamWOptions::weight_decay},
};

// The options that decide which states and which formula a group has, by PyTorch's names, with their defaults.
struct FixedOption {
  std::string_view name;
  bool AdamWOptions::*member;
  bool otherwise;
};
constexpr FixedOption kFixed[] = {{"amsgrad", &AdamWOptions::amsgrad, false},
                                  {"decoupled_weight_decay", &AdamWOptions::decoupled_weight_decay, true}};

StateRule StatesOf(const AdamWOptions& options) {
  return [amsgrad = options.amsgrad](const ShardedParameter&, std::string_view state) {
    return amsgrad || state != kLargest;
  };
}

std::vector<std::string> StateNames(const std::vector<AdamW::Group>& groups) {
  std::vector<std::string> names = {"exp_avg", "exp_avg_sq"};
  const bool amsgrad = std::any_of(groups.begin(), groups.end(), [](const auto& g) { return g.options.amsgrad; });
  if (amsgrad) names.push_back(kLargest);
  return names;
}

}  // namespace

absl::Status Validate(const AdamWOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckNotNegative("lr", options.lr));
  FSDP_RETURN_IF_ERROR(CheckBelow1("beta1", options.beta1));
  FSDP_RETURN_IF_ERROR(CheckBelow1("beta2", options.beta2));
  FSDP_RETURN_IF_ERROR(CheckNotNegative("eps", options.eps));
  return CheckNotNegative("weight_decay", options.weight_decay);
}

AdamW::AdamW(std::vector<ShardedParameter*> parameters, const AdamWOptions& options)
    : AdamW(std::vector<Group>{{std::move(parameters), options}}) {}

AdamW::AdamW(std::vector<Group> groups)
    : Optimizer(ParametersOf(groups), StateNames(groups)), groups_(std::move(groups)) {
  for (size_t g = 0; g < groups_.size(); ++g) LimitStates(g, StatesOf(groups_[g].options));
}

std::vector<AdamW::Group> AdamW::DecayMatricesOnly(absl::Span<ShardedParameter* const> parameters,
                                                   const AdamWOptions& options) {
  std::vector<Group> groups = {{{}, options}, {{}, options}};
  groups[1].options.weight_decay = 0;
  for (ShardedParameter* parameter : parameters) {
    groups[parameter->shape.rank() >= 2 ? 0 : 1].parameters.push_back(parameter);
  }
  return groups;
}

absl::Status AdamW::AddParamGroup(Group group) {
  FSDP_RETURN_IF_ERROR(ValidateGroup(kName, groups_.size(), group.options));
  if (live_scalars_.defined()) {
    return absl::FailedPreconditionError(
        "AdamW: no param group can be added after CopyScalarsToDevice: a captured step would leave it out");
  }
  if (group.options.amsgrad && state_names().back() != kLargest) {
    return absl::FailedPreconditionError("AdamW was made without amsgrad and has no memory for its state");
  }
  FSDP_RETURN_IF_ERROR(Annotate(AddParameters(group.parameters, StatesOf(group.options)), kName));
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

absl::Status AdamW::Step(Stream& stream) {
  FSDP_RETURN_IF_ERROR(CheckGroups());
  FSDP_ASSIGN_OR_RETURN(const std::vector<size_t> indices, ParametersToUpdate());
  if (indices.empty()) {
    FinishStep(indices);
    return absl::OkStatus();
  }
  FSDP_RETURN_IF_ERROR(CheckVariants(indices));
  FSDP_ASSIGN_OR_RETURN(const UpdateOps* ops, OpsFor(indices, stream));
  if (IsCapturing(stream) && !live_scalars_.defined()) {
    return absl::FailedPreconditionError("a step of AdamW is captured before CopyScalarsToDevice was called");
  }
  std::vector<AdamWUpdate> updates;
  for (const size_t i : indices) {
    FSDP_RETURN_IF_ERROR(state().Create(i));
    const AdamWOptions& options = groups_[group_of(i)].options;
    updates.push_back({ScalarsOf(options, step_count(i) + 1), parameters()[i]->data, parameters()[i]->grad,
                       state().slice(0, i), state().slice(1, i), ExtrasOf(i),
                       IsCapturing(stream) ? LiveScalars(i) : Tensor(),
                       options.decoupled_weight_decay ? 0 : static_cast<float>(options.weight_decay),
                       options.amsgrad ? state().slice(2, i) : Tensor()});
  }
  ops->AdamW(std::move(updates), stream);
  FinishStep(indices);
  return absl::OkStatus();
}

absl::Status AdamW::CopyScalarsToDevice(Stream& stream) {
  FSDP_RETURN_IF_ERROR(CheckGroups());
  const auto count = static_cast<int64_t>(parameters().size());
  const int64_t nbytes = count * static_cast<int64_t>(sizeof(AdamWScalars));
  if (!live_scalars_.defined()) {
    FSDP_ASSIGN_OR_RETURN(staged_scalars_, stream.device().AllocatePinned(nbytes));
    FSDP_ASSIGN_OR_RETURN(live_scalars_, Tensor::Empty(stream.device(), DType::kFloat32, {count * kScalars}));
  }
  // The previous upload reads the staging memory until it is done, which it usually is a step later.
  FSDP_RETURN_IF_ERROR(uploaded_.Synchronize());
  for (int64_t i = 0; i < count; ++i) {
    const AdamWScalars scalars = ScalarsOf(groups_[group_of(i)].options, step_count(i) + 1);
    std::memcpy(staged_scalars_.data() + i * sizeof(scalars), &scalars, sizeof(scalars));
  }
  stream.CopyAsync(live_scalars_.data(), staged_scalars_.data(), nbytes);
  uploaded_ = stream.Record();
  return absl::OkStatus();
}

absl::Status AdamW::CheckVariants(const std::vector<size_t>& indices) const {
  std::vector<size_t> amsgrad, adam;
  for (const size_t i : indices) {
    const AdamWOptions& options = groups_[group_of(i)].options;
    if (options.amsgrad) amsgrad.push_back(i);
    if (!options.decoupled_weight_decay) adam.push_back(i);
  }
  FSDP_RETURN_IF_ERROR(CheckOnHost("AdamW with amsgrad", amsgrad));
  return CheckOnHost("AdamW without decoupled_weight_decay", adam);
}

Tensor AdamW::LiveScalars(size_t index) const {
  const auto first = static_cast<int64_t>(index) * kScalars;
  return live_scalars_.Slice({first, first + kScalars});
}

std::vector<ParamGroupState> AdamW::FormulaGroups() const {
  std::vector<ParamGroupState> states;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const AdamWOptions& o = groups_[g].options;
    states.push_back(
        {GroupNames(g),
         {{"lr", o.lr}, {"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}, {"weight_decay", o.weight_decay}}});
    const bool usual = std::all_of(std::begin(kFixed), std::end(kFixed),
                                   [&](const FixedOption& fixed) { return o.*fixed.member == fixed.otherwise; });
    auto& place = usual ? states.back().implied : states.back().values;
    for (const FixedOption& fixed : kFixed) place.emplace_back(fixed.name, o.*fixed.member ? 1 : 0);
  }
  return states;
}

absl::Status AdamW::CheckFormula(size_t group, std::string_view name, double value) const {
  FSDP_RETURN_IF_ERROR(CheckGroup(kName, group));
  AdamWOptions options = groups_[group].options;
  for (const FixedOption& fixed : kFixed) {
    if (fixed.name != name) continue;
    const bool mine = options.*fixed.member;
    if (mine == (value != 0)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(kName, ", param group ", group, ": ", std::string(name), " is ",
                                                   mine ? "true, not false" : "false, not true",
                                                   ", and fixed: make the optimizer with the other value"));
  }
  double* const field = FieldOf(kFields, options, name);
  if (field == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("AdamW has no hyperparameter \"", std::string(name),
                                                   "\"; it has lr, beta1, beta2, eps, weight_decay"));
  }
  *field = value;
  return ValidateGroup(kName, group, options);
}

void AdamW::AssignFormula(size_t group, std::string_view name, double value) {
  // CheckFormula has refused other values of fixed options.
  if (double* const field = FieldOf(kFields, groups_[group].options, name); field != nullptr) *field = value;
}

absl::Status AdamW::CheckGroups() const {
  FSDP_RETURN_IF_ERROR(ValidateGroups(kName, groups_));
  return absl::OkStatus();
}

}  // namespace fsdp
