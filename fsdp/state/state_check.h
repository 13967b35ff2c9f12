// SPDX-License-Identifier: Apache-2.0
//
// Checks that a tensor of a state dict is the one that a load needs on this rank, before anything is changed or sent.
#ifndef FSDP_FSDP_STATE_STATE_CHECK_H_
#define FSDP_FSDP_STATE_STATE_CHECK_H_

#include "absl/status/status.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The tensor that a load needs on this rank.
struct WantedTensor {
  DType dtype = DType::kFloat32;  // of the destination
  Shape shape;                    // of the whole tensor
  Interval interval;              // that this rank must hold
  StateSource from = StateSource::kFull;
};

// The tensor that a load from `from` needs for parameter `index` of `unit`, or a state of it, in `dtype`.
WantedTensor WantedOf(const Unit& unit, size_t index, StateSource from, DType dtype);

// The tensor that a load from `from` needs for a destination that every rank holds whole.
WantedTensor WantedWhole(const Shape& shape, StateSource from, DType dtype);

// OK if `source` is `wanted`. kInvalidArgument, naming `key`, for another shape, a dtype that cannot be converted, or
// other elements. `ranks` is for the message. Local.
absl::Status CheckWanted(const StateKey& key, const ShardedTensor& source, const WantedTensor& wanted,
                         const AllRanks& ranks);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_STATE_CHECK_H_
