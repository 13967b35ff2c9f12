// SPDX-License-Identifier: Apache-2.0
//
// GroupsByName: param_groups of an optimizer whose parameters are flat tensors, with the names of what is in them.
// Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_NAMED_GROUPS_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_NAMED_GROUPS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_values.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

// The groups with names: parameter i of the optimizer is all of `units[i]`. kDataLoss if an id is not in
// `units`, or is there twice.
absl::StatusOr<TorchNode> GroupsByName(const TorchNode& groups, const std::vector<NamedShapes>& units);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_NAMED_GROUPS_H_
