// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/lion.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/option_check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/param_groups.h"
#include "fsdp/optim/state_buffers.h"
#include "fsdp/optim/update_ops.h"

namespace fsdp {
namespace {

constexpr char kName[] = "Lion";

// Rounded to float32 once, as the kernels take them.
LionScalars ScalarsOf(const LionOptions& options) {
  return {.negative_decay = static_cast<float>(-(options.lr * options.weight_decay)),
          .beta1 = static_cast<float>(options.beta1),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .negative_lr = static_cast<float>(-options.lr)};
}

constexpr NumberField<LionOptions> kFields[] = {
    {"lr", &LionOptions::lr},
    {"beta1", &LionOptions::beta1},
    {"beta2", &LionOptions::beta2},
    {"weight_decay", &LionOptions::weight_decay},
};

}  // namespace

absl::Status Validate(const LionOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckNotNegative("lr", options.lr));
  FSDP_RETURN_IF_ERROR(CheckBelow1("beta1", options.beta1));
  FSDP_RETURN_IF_ERROR(CheckBelow1("beta2", options.beta2));
  return CheckNotNegative("weight_decay", options.weight_decay);
}

Lion::Lion(std::vector<ShardedParameter*> parameters, const LionOptions& options)
    : Lion(std::vector<Group>{{std::move(parameters), options}}) {}

Lion::Lion(std::vector<Group> groups) : Optimizer(ParametersOf(groups), {"exp_avg"}), groups_(std::move(groups)) {}

absl::Status Lion::AddParamGroup(Group group) {
  FSDP_RETURN_IF_ERROR(ValidateGroup(kName, groups_.size(), group.options));
  FSDP_RETURN_IF_ERROR(Annotate(AddParameters(group.parameters), kName));
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

// All slices in one pass of the stream: state is made first, so that the kernel only updates.
absl::Status Lion::Step(Stream& stream) {
  FSDP_RETURN_IF_ERROR(ValidateGroups(kName, groups_));
  FSDP_ASSIGN_OR_RETURN(const std::vector<size_t> indices, ParametersToUpdate());
  if (indices.empty()) {
    FinishStep(indices);
    return absl::OkStatus();
  }
  FSDP_RETURN_IF_ERROR(CheckOnHost(kName, indices));
  FSDP_ASSIGN_OR_RETURN(const UpdateOps* ops, OpsFor(indices, stream));
  std::vector<LionUpdate> updates;
  for (const size_t i : indices) {
    FSDP_RETURN_IF_ERROR(state().Create(i));
    updates.push_back({ScalarsOf(groups_[group_of(i)].options), parameters()[i]->data, parameters()[i]->grad,
                       state().slice(0, i), ExtrasOf(i)});
  }
  ops->Lion(std::move(updates), stream);
  FinishStep(indices);
  return absl::OkStatus();
}

std::vector<ParamGroupState> Lion::FormulaGroups() const {
  std::vector<ParamGroupState> states;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const LionOptions& o = groups_[g].options;
    states.push_back(
        {GroupNames(g), {{"lr", o.lr}, {"beta1", o.beta1}, {"beta2", o.beta2}, {"weight_decay", o.weight_decay}}});
  }
  return states;
}

absl::Status Lion::CheckFormula(size_t group, std::string_view name, double value) const {
  FSDP_RETURN_IF_ERROR(CheckGroup(kName, group));
  LionOptions options = groups_[group].options;
  double* const field = FieldOf(kFields, options, name);
  if (field == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("Lion has no hyperparameter \"", std::string(name), "\"; it has lr, beta1, beta2, weight_decay"));
  }
  *field = value;
  return ValidateGroup(kName, group, options);
}

void Lion::AssignFormula(size_t group, std::string_view name, double value) {
  *FieldOf(kFields, groups_[group].options, name) = value;
}

}  // namespace fsdp
