// SPDX-License-Identifier: Apache-2.0
//
// The hyperparameters of a param group as PyTorch writes them: lists, flags and names, each of which is one number or
// several in an Optimizer's ParamGroups.
#ifndef FSDP_FSDP_STATE_PARAM_GROUP_VALUES_H_
#define FSDP_FSDP_STATE_PARAM_GROUP_VALUES_H_

#include <string>

#include "nlohmann/json.hpp"

namespace fsdp {

// Adds hyperparameter `name` ("beta1") to `group`, as an element of a list ("betas"), a flag, a text or a number. The
// elements of a list come in order.
void AddGroupValue(const std::string& name, double value, nlohmann::ordered_json& group);

// The value of hyperparameter `name` in `group`, a number unless PyTorch could not have written it; null if
// `group` does not mention it.
nlohmann::ordered_json GroupValue(const nlohmann::ordered_json& group, const std::string& name);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_PARAM_GROUP_VALUES_H_
