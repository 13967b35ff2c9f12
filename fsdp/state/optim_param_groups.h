// SPDX-License-Identifier: Apache-2.0
//
// param_groups of an optimizer's state dict, as JSON in PyTorch's form:
// [{"params": [names], "lr": 0.001, "betas": [0.9, 0.999], ...}, ...].
#ifndef FSDP_FSDP_STATE_OPTIM_PARAM_GROUPS_H_
#define FSDP_FSDP_STATE_OPTIM_PARAM_GROUPS_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/optim/optimizer.h"

namespace fsdp {

std::string ParamGroupsJson(const Optimizer& optimizer);

// Sets the hyperparameters of each group of `optimizer` to those of the group of `text` that has the same parameters;
// one that `text` does not mention stays. kInvalidArgument, and nothing is changed, when the groups differ in number or
// parameters (named), or a value is none.
absl::Status LoadParamGroups(const std::string& text, Optimizer& optimizer);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_PARAM_GROUPS_H_
