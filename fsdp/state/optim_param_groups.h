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

// The groups of `optimizer` with their hyperparameters now.
std::string ParamGroupsJson(const Optimizer& optimizer);

// Sets the hyperparameters of each group of `optimizer` from the group of `text` with the same index. Hyperparameters
// that `text` does not mention stay. kInvalidArgument, and nothing is changed, if the groups differ in number or in
// their parameters, naming one, or if a value is not a number.
absl::Status LoadParamGroups(const std::string& text, Optimizer& optimizer);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_PARAM_GROUPS_H_
