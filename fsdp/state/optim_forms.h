// SPDX-License-Identifier: Apache-2.0
//
// An optimizer's state dict turned from the form that it was saved in into the one that this rank's optimizer needs:
// the slices of its flat shards, keyed by names, as a LOCAL state dict. PyTorch's shard_full_, scatter_full_ and
// flatten_sharded_optim_state_dict. Only the optimizer's part of a state dict is turned; entries of parameters that no
// unit has, the user's own among them, are copied as they are, and param_groups too, where there are any.
#ifndef FSDP_FSDP_STATE_OPTIM_FORMS_H_
#define FSDP_FSDP_STATE_OPTIM_FORMS_H_

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// This rank's slices of `state`, in memory of their own. kInvalidArgument, on every rank but of kFull and kLocal, names
// an entry of another shape or form. Collective for kFullFirst and kSharded.
absl::StatusOr<StateDict> OptimSlices(const UnitStore& units, const StateDict& state, StateSource from);

// Of whole tensors that every rank has; without communication.
absl::StatusOr<StateDict> ShardFullOptimState(const UnitStore& units, const StateDict& full);

// Of whole tensors that rank 0 has; null elsewhere. kInvalidArgument where rank 0 has none either.
absl::StatusOr<StateDict> ScatterFullOptimState(const UnitStore& units, const StateDict* full);

// Of each rank's dim-0 chunks.
absl::StatusOr<StateDict> FlattenShardedOptimState(const UnitStore& units, const StateDict& sharded);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_FORMS_H_
