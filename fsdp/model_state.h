// SPDX-License-Identifier: Apache-2.0
//
// The model's half of state dicts: FULL and SHARDED of the parameters, their inverse, and the live view that a
// checkpoint fills in place. Free functions over the units; fully_sharded_data_parallel.h documents the behaviour.
#ifndef FSDP_FSDP_MODEL_STATE_H_
#define FSDP_FSDP_MODEL_STATE_H_

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "fsdp/state_dict_config.h"
#include "fsdp/state_gather.h"
#include "fsdp/unit.h"
#include "tensor/state_dict.h"

namespace fsdp {

GatherForm FormOf(const StateDictConfig& config);

// Aliases and flat layouts of the units, and no tensors: what every state dict of the model begins with.
StateDict EmptyStateDict(const UnitStore& units);

absl::StatusOr<StateDict> GetModelState(const UnitStore& units, ProcessGroup& group, const GatherForm& form);

absl::Status LoadModelState(const UnitStore& units, ProcessGroup& group, const StateDict& state, StateDictType type);

// This rank's live slices of the parameters, aliased.
StateDict LiveModelState(const UnitStore& units);

// One live slice of a whole tensor of `shape`.
ShardedTensor LiveSlice(const Shape& shape, const Interval& interval, const Tensor& slice);

// OK when `source` is what `type` asks of this rank: the whole tensor or its dim-0 chunk, of this shape.
absl::Status CheckForm(const StateKey& key, const ShardedTensor& source, const Shape& shape, StateDictType type,
                       const ProcessGroup& group);

}  // namespace fsdp

#endif  // FSDP_FSDP_MODEL_STATE_H_
