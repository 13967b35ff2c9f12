// SPDX-License-Identifier: Apache-2.0
//
// As in PyTorch, the first step of a parameter with momentum copies its gradient to the buffer instead of mixing it
// with zero: dampening does not apply to it. Whether a step is the first is decided by the existence of the buffer and
// not by the step count, so training continues from a loaded state.
#include "fsdp/optim/sgd.h"

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

constexpr char kName[] = "SGD";

// Subtractions are done here in float64, as in PyTorch, whose scalars are Python's floats.
SgdScalars ScalarsOf(const SgdOptions& options, bool first) {
  return {.weight_decay = static_cast<float>(options.weight_decay),
          .momentum = static_cast<float>(options.momentum),
          .one_minus_dampening = static_cast<float>(1 - options.dampening),
          .negative_lr = static_cast<float>(-options.lr),
          .nesterov = options.nesterov,
          .first = first};
}

constexpr NumberField<SgdOptions> kFields[] = {
    {"lr", &SgdOptions::lr},
    {"momentum", &SgdOptions::momentum},
    {"dampening", &SgdOptions::dampening},
    {"weight_decay", &SgdOptions::weight_decay},
};

// SGD without momentum has no state, so no buffer is allocated for it.
std::vector<std::string> StateNames(const std::vector<Sgd::Group>& groups) {
  for (const Sgd::Group& group : groups) {
    if (group.options.momentum != 0) return {"momentum_buffer"};
  }
  return {};
}

}  // namespace

absl::Status Validate(const SgdOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckNotNegative("lr", options.lr));
  FSDP_RETURN_IF_ERROR(CheckNotNegative("momentum", options.momentum));
  FSDP_RETURN_IF_ERROR(CheckFiniteOption("dampening", options.dampening));
  FSDP_RETURN_IF_ERROR(CheckNotNegative("weight_decay", options.weight_decay));
  if (!options.nesterov || (options.momentum > 0 && options.dampening == 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("nesterov wants momentum above 0 and dampening 0, got ",
                                                 options.momentum, " and ", options.dampening));
}

Sgd::Sgd(std::vector<ShardedParameter*> parameters, const SgdOptions& options)
    : Sgd(std::vector<Group>{{std::move(parameters), options}}) {}

Sgd::Sgd(std::vector<Group> groups) : Optimizer(ParametersOf(groups), StateNames(groups)), groups_(std::move(groups)) {}

absl::Status Sgd::AddParamGroup(Group group) {
  FSDP_RETURN_IF_ERROR(ValidateGroup(kName, groups_.size(), group.options));
  FSDP_RETURN_IF_ERROR(CheckMomentum(group.options.momentum));
  FSDP_RETURN_IF_ERROR(Annotate(AddParameters(group.parameters), kName));
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

absl::Status Sgd::CheckMomentum(double momentum) const {
  if (momentum == 0 || !state_names().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError("SGD was made without momentum and has no buffer for it");
}

absl::Status Sgd::Step(Stream& stream) {
  FSDP_RETURN_IF_ERROR(ValidateGroups(kName, groups_));
  FSDP_ASSIGN_OR_RETURN(const std::vector<size_t> indices, ParametersToUpdate());
  if (indices.empty()) {
    FinishStep(indices);
    return absl::OkStatus();
  }
  FSDP_ASSIGN_OR_RETURN(const UpdateOps* ops, OpsFor(indices, stream));
  std::vector<SgdUpdate> updates;
  for (const size_t i : indices) {
    const SgdOptions& options = groups_[group_of(i)].options;
    // Before Create, which makes the buffer exist.
    const bool first = !state().exists(i);
    Tensor momentum_buffer;
    if (!state_names().empty()) {
      FSDP_RETURN_IF_ERROR(state().Create(i));
      momentum_buffer = state().slice(0, i);
    }
    updates.push_back(
        {ScalarsOf(options, first), parameters()[i]->data, parameters()[i]->grad, momentum_buffer, ExtrasOf(i)});
  }
  ops->Sgd(std::move(updates), stream);
  FinishStep(indices);
  return absl::OkStatus();
}

std::vector<ParamGroupState> Sgd::FormulaGroups() const {
  std::vector<ParamGroupState> states;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const SgdOptions& o = groups_[g].options;
    states.push_back({GroupNames(g),
                      {{"lr", o.lr},
                       {"momentum", o.momentum},
                       {"dampening", o.dampening},
                       {"weight_decay", o.weight_decay},
                       {"nesterov", o.nesterov ? 1 : 0}}});
  }
  return states;
}

// Step checks Nesterov's demands on the other values, because values are set one by one.
absl::Status Sgd::CheckFormula(size_t group, std::string_view name, double value) const {
  FSDP_RETURN_IF_ERROR(CheckGroup(kName, group));
  // On a copy, so that Validate sees the new value together with the others.
  SgdOptions options = groups_[group].options;
  options.nesterov = false;
  if (double* const field = FieldOf(kFields, options, name); field != nullptr) {
    *field = value;
  } else if (name != "nesterov") {
    return absl::InvalidArgumentError(absl::StrCat("SGD has no hyperparameter \"", std::string(name),
                                                   "\"; it has lr, momentum, dampening, weight_decay, nesterov"));
  }
  if (name == "momentum") FSDP_RETURN_IF_ERROR(CheckMomentum(value));
  return ValidateGroup(kName, group, options);
}

void Sgd::AssignFormula(size_t group, std::string_view name, double value) {
  SgdOptions& options = groups_[group].options;
  if (double* const field = FieldOf(kFields, options, name); field != nullptr) {
    *field = value;
  } else {
    options.nesterov = value != 0;
  }
}

}  // namespace fsdp
