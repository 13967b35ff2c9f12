// SPDX-License-Identifier: Apache-2.0
//
// ShardDimOf: the checked result of FSDP2's shard_placement_fn for one parameter.
#ifndef FSDP_FSDP_UNITS_SHARD_PLACEMENT_H_
#define FSDP_FSDP_UNITS_SHARD_PLACEMENT_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/nn/parameter.h"

namespace fsdp {

// FullyShardOptions::shard_placement_fn.
using ShardPlacementFn = std::function<std::optional<int>(const Parameter& parameter)>;

// The dimension on which `parameter` is cut over `ranks`, 0 or above; 0 without a function. `name` is for messages.
// kInvalidArgument for a dimension that it does not have; kUnimplemented for one other than 0 that the ranks do not
// divide, as in PyTorch, and for one other than 0 of a parameter that is a part of a larger tensor.
absl::StatusOr<int> ShardDimOf(const ShardPlacementFn& fn, const Parameter& parameter, const std::string& name,
                               int ranks);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_SHARD_PLACEMENT_H_
