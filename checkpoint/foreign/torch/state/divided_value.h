// SPDX-License-Identifier: Apache-2.0
//
// DividedValue: the text of an extra value that is divided into parts (extra_parts.h).
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DIVIDED_VALUE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DIVIDED_VALUE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

// Passes each tensor in `node`, and each largest value without one, to `add`, with its name: `name` and the path to it,
// joined by dots. Returns the text that refers to them. Errors of `add`. Appends to one text, because a tree of JSON
// with an object for each tensor of a large dict would take ten times as much.
absl::StatusOr<std::string> DivideValue(
    const std::string& name, const TorchNode& node,
    const std::function<absl::Status(const std::string& name, const TorchNode& part)>& add);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DIVIDED_VALUE_H_
