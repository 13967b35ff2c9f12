// SPDX-License-Identifier: Apache-2.0
//
// ModelValue: a value of a model's state dict that is no tensor: the _extra_state of a module, a buffer that is a
// number. It is an extra value whose name says where it was, so that formats with dicts write it there again:
//
//   {"model": {"fc.weight": tensor, "fc._extra_state": {"scale": 2}}}    model/fc.weight, extra/model/fc._extra_state
//
// Tensors in such a value are extra values too, named by the path to them: extra/model/fc._extra_state.history.
#ifndef FSDP_CHECKPOINT_SOURCE_MODEL_VALUE_H_
#define FSDP_CHECKPOINT_SOURCE_MODEL_VALUE_H_

#include <optional>
#include <string>
#include <string_view>

#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The key of the value `fqn` of the model, and the inverse: nullopt for any other key.
StateKey ModelValue(const std::string& fqn);
std::optional<std::string> NameOfModelValue(const StateKey& key);

// True for a name that only a module's value has, "_extra_state" or one with a dot: a plain state dict, which has the
// values of the program next to the tensors, has the module's under such names.
bool IsNameInModule(std::string_view name);

// True for the name of what a module's get_extra_state returned: any value of Python, also with tensors in it.
bool IsExtraState(std::string_view name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_MODEL_VALUE_H_
