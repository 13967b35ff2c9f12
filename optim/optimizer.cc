// SPDX-License-Identifier: Apache-2.0
//
// The part of a step that AdamW and SGD share: which parameters have a gradient, whether kernels can update them, and
// the bookkeeping after. A parameter is a slice of a flat shard, so nothing here knows ranks; a rank without elements
// of a parameter updates an empty slice and counts the step like all others, which keeps step counts equal on all
// ranks.
#include "fsdp/optim/optimizer.h"

#include <cmath>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/state_buffers.h"
#include "fsdp/optim/update_ops.h"

namespace fsdp {
namespace {

std::vector<ShardedParameter*> Flatten(const std::vector<std::vector<ShardedParameter*>>& groups) {
  std::vector<ShardedParameter*> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

// Hyperparameters of every optimizer.
constexpr std::string_view kStochasticRound = "bf16_stochastic_round";
constexpr std::string_view kRoundingSeed = "rounding_seed";

// State dicts have the seed as a double, which has all whole numbers up to this one.
constexpr uint64_t kMostSeed = uint64_t{1} << 53;

bool Is16Bits(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

absl::Status CheckUpdatable(const ShardedParameter& parameter) {
  const DType data = parameter.data.dtype(), grad = parameter.grad.dtype();
  const bool known = data == DType::kFloat32 ? grad == data || Is16Bits(grad) : Is16Bits(data) && grad == data;
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", parameter.fqn, "\": data ", std::string(DTypeName(data)), " and grad ",
                     std::string(DTypeName(grad)),
                     ", wanted float32 and float32, bfloat16 or float16, or bfloat16 or float16 for both"));
  }
  if (parameter.data.numel() != parameter.interval.size() || parameter.grad.numel() != parameter.interval.size()) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter.fqn, "\": data and grad have ",
                                                   parameter.data.numel(), " and ", parameter.grad.numel(),
                                                   " elements, wanted ", parameter.interval.ToString()));
  }
  const Tensor& copy = parameter.compute_copy;
  if (copy.defined() && (copy.dtype() != DType::kBFloat16 || copy.numel() != parameter.interval.size())) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter.fqn, "\": compute_copy is ",
                                                   std::string(DTypeName(copy.dtype())), " ", copy.shape().ToString(),
                                                   ", wanted bfloat16 of ", parameter.interval.ToString()));
  }
  return absl::OkStatus();
}

// Kernels of devices take float32 parameters.
absl::Status CheckDTypeOnDevice(const ShardedParameter& parameter) {
  if (parameter.device->type() == DeviceType::kCpu || parameter.data.dtype() == DType::kFloat32) {
    return absl::OkStatus();
  }
  const std::string dtype(DTypeName(parameter.data.dtype()));
  return absl::UnimplementedError(absl::StrCat(
      "parameter \"", parameter.fqn, "\" is ", dtype, " on ", parameter.device->name(), ", and kernels for ", dtype,
      " parameters are for hosts: keep it in float32 and compute in ", dtype, " (param_dtype), or offload it"));
}

absl::Status CheckStepScalar(std::string_view name, const Tensor& t) {
  if (!t.defined() || (t.dtype() == DType::kFloat32 && t.numel() == 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), " is ", std::string(DTypeName(t.dtype())), " ",
                                                 t.shape().ToString(), ", wanted one float32 element"));
}

}  // namespace

Optimizer::Optimizer(const std::vector<std::vector<ShardedParameter*>>& groups, std::vector<std::string> state_names)
    : parameters_(Flatten(groups)),
      num_groups_(groups.size()),
      steps_(parameters_.size(), 0),
      state_(std::make_unique<StateBuffers>(std::move(state_names), parameters_)) {
  // group_of_[i] is the group of parameters_[i]: Flatten keeps the order of the groups.
  for (size_t g = 0; g < groups.size(); ++g) group_of_.insert(group_of_.end(), groups[g].size(), g);
}

absl::Status Optimizer::AddParameters(absl::Span<ShardedParameter* const> parameters, const StateRule& rule) {
  std::set<const ShardedParameter*> known(parameters_.begin(), parameters_.end());
  for (const ShardedParameter* parameter : parameters) {
    if (known.insert(parameter).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter->fqn, "\" is in two param groups"));
  }
  FSDP_RETURN_IF_ERROR(state_->Add(parameters, rule));
  parameters_.insert(parameters_.end(), parameters.begin(), parameters.end());
  group_of_.resize(parameters_.size(), num_groups_);
  steps_.resize(parameters_.size(), 0);
  ++num_groups_;
  return absl::OkStatus();
}

Optimizer::Optimizer(Optimizer&&) = default;
Optimizer::~Optimizer() = default;

const std::vector<std::string>& Optimizer::state_names() const { return state_->names(); }

std::vector<std::string> Optimizer::StateNamesOf(size_t index) const { return state_->NamesOf(index); }

void Optimizer::LimitStates(size_t group, const StateRule& rule) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (group_of_[i] == group) state_->Limit(i, rule);
  }
}

absl::Status Optimizer::CheckOnHost(std::string_view what, const std::vector<size_t>& indices) const {
  for (const size_t i : indices) {
    const Device& device = *parameters_[i]->device;
    if (device.type() == DeviceType::kCpu) continue;
    return absl::UnimplementedError(absl::StrCat(
        std::string(what), ": parameter \"", parameters_[i]->fqn, "\" is on ", device.name(),
        ", and the kernels are for parameters on the host: ", "offload them (CpuOffload), or train with AdamW or SGD"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Optimizer::State(size_t index, std::string_view name, bool create) {
  return state_->Find(index, name, create);
}

void Optimizer::ZeroGrad() {
  // Memory is not cleared: a gradient that is not marked counts as absent.
  for (ShardedParameter* parameter : parameters_) parameter->has_grad = false;
}

absl::StatusOr<std::vector<size_t>> Optimizer::ParametersToUpdate() {
  FSDP_RETURN_IF_ERROR(CheckStepScalar("grad_factor", grad_factor_));
  FSDP_RETURN_IF_ERROR(CheckStepScalar("found_inf", found_inf_));
  // Before the first Create, so that TakeBackStep knows which states this step made.
  state_->BeginStep();
  std::vector<size_t> indices;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->has_grad) continue;
    FSDP_RETURN_IF_ERROR(CheckUpdatable(*parameters_[i]));
    indices.push_back(i);
  }
  return indices;
}

absl::StatusOr<const UpdateOps*> Optimizer::OpsFor(const std::vector<size_t>& indices, const Stream& stream) const {
  // `indices` is not empty: Step returns before if there is nothing to update.
  const Device& first = *parameters_[indices[0]]->device;
  for (const size_t i : indices) {
    const Device& device = *parameters_[i]->device;
    FSDP_RETURN_IF_ERROR(CheckDTypeOnDevice(*parameters_[i]));
    if (device.type() == first.type()) continue;
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameters_[i]->fqn, "\" is on ", device.name(),
                                                   ", but \"", parameters_[indices[0]]->fqn, "\" on ", first.name(),
                                                   ": an optimizer's parameters are on devices of one kind"));
  }
  // Any stream may update host parameters, but only a GPU's stream a GPU's parameters.
  if (first.type() != DeviceType::kCpu && stream.device().type() != first.type()) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameters_[indices[0]]->fqn, "\" is on ",
                                                   first.name(), ": its update cannot run on stream \"",
                                                   std::string(stream.name()), "\" of ", stream.device().name()));
  }
  absl::StatusOr<const UpdateOps*> ops = UpdateOpsFor(first);
  if (ops.ok()) return ops;
  return Annotate(ops.status(), absl::StrCat("parameter \"", parameters_[indices[0]]->fqn, "\""));
}

TensorExtras Optimizer::ExtrasOf(size_t index) const {
  TensorExtras extras = {
      .grad_factor = grad_factor_, .found_inf = found_inf_, .compute_copy = parameters_[index]->compute_copy};
  if (rounding_seed_ && parameters_[index]->data.dtype() == DType::kBFloat16) {
    extras.rounding.emplace(*rounding_seed_, *parameters_[index], steps_[index] + 1);
  }
  return extras;
}

// A step counts although the stream has not run it yet.
void Optimizer::FinishStep(const std::vector<size_t>& indices) {
  for (const size_t i : indices) {
    ++steps_[i];
    parameters_[i]->MarkChanged();
    parameters_[i]->compute_copy_current = parameters_[i]->compute_copy.defined();
  }
  // Both are for one step.
  grad_factor_ = Tensor();
  found_inf_ = Tensor();
  updated_ = indices;
}

void Optimizer::TakeBackStep() {
  for (const size_t i : updated_) --steps_[i];
  state_->TakeBackStep();
}

// A replay runs the captured kernels again, so only the counts need updating.
void Optimizer::CountReplay() {
  state_->BeginStep();
  FinishStep(std::vector<size_t>(updated_));
}

absl::Status Optimizer::CopyScalarsToDevice(Stream&) {
  return absl::UnimplementedError("this optimizer's steps cannot be captured in a graph: AdamW's can");
}

absl::Status Optimizer::set_bf16_stochastic_round(std::optional<uint64_t> seed) {
  if (seed && !has_stochastic_rounding()) {
    return absl::UnimplementedError(
        "bf16_stochastic_round: LibTorch's optimizers round to the nearest; use AdamW, Sgd, "
        "Lion, Adafactor or Muon");
  }
  if (seed && *seed > kMostSeed) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf16_stochastic_round: seed ", *seed, ", expected at most 2^53, ", kMostSeed));
  }
  rounding_seed_ = seed;
  return absl::OkStatus();
}

std::vector<ParamGroupState> Optimizer::ParamGroups() const {
  std::vector<ParamGroupState> groups = FormulaGroups();
  for (ParamGroupState& group : groups) {
    auto& place = rounding_seed_ ? group.values : group.implied;
    place.emplace_back(kStochasticRound, rounding_seed_ ? 1 : 0);
    place.emplace_back(kRoundingSeed, static_cast<double>(rounding_seed_.value_or(0)));
  }
  return groups;
}

absl::Status Optimizer::CheckHyperparameter(size_t group, std::string_view name, double value) const {
  const bool rounds = name == kStochasticRound;
  if (!rounds && name != kRoundingSeed) return CheckFormula(group, name, value);
  FSDP_RETURN_IF_ERROR(CheckGroup("the optimizer", group));
  if (value >= 0 && value <= (rounds ? 1 : static_cast<double>(kMostSeed)) && value == std::floor(value)) {
    if (!rounds || value == 0 || has_stochastic_rounding()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(std::string(name), ": LibTorch's optimizers round to the nearest"));
  }
  return absl::InvalidArgumentError(absl::StrCat("param group ", group, ": ", std::string(name), " is ", value,
                                                 ": expected ", rounds ? "0 or 1" : "a whole number up to 2^53"));
}

// Both are of all groups: the groups of a state dict have the same values.
void Optimizer::Assign(size_t group, std::string_view name, double value) {
  if (name == kStochasticRound) {
    rounding_seed_ = value != 0 ? std::optional<uint64_t>(rounding_seed_.value_or(0)) : std::nullopt;
  } else if (name == kRoundingSeed) {
    if (rounding_seed_) rounding_seed_ = static_cast<uint64_t>(value);
  } else {
    AssignFormula(group, name, value);
  }
}

absl::Status Optimizer::SetGroupHyperparameter(size_t group, std::string_view name, double value) {
  FSDP_RETURN_IF_ERROR(CheckHyperparameter(group, name, value));
  Assign(group, name, value);
  return absl::OkStatus();
}

absl::Status Optimizer::SetHyperparameter(std::string_view name, double value) {
  // All groups are checked before the first is changed.
  for (size_t group = 0; group < num_groups_; ++group) FSDP_RETURN_IF_ERROR(CheckHyperparameter(group, name, value));
  for (size_t group = 0; group < num_groups_; ++group) Assign(group, name, value);
  return absl::OkStatus();
}

absl::Status Optimizer::CheckGroup(std::string_view optimizer, size_t group) const {
  if (group < num_groups_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(optimizer), " has no param group ", group, ": it has ", num_groups_));
}

std::vector<std::string> Optimizer::GroupNames(size_t group) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (group_of_[i] == group) names.push_back(parameters_[i]->fqn);
  }
  return names;
}

}  // namespace fsdp
