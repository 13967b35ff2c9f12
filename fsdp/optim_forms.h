// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's three older functions on optimizer state dicts: shard_full_, scatter_full_ and
// flatten_sharded_optim_state_dict. Each takes one form of state dict, independently of the model's StateDictSettings,
// and returns this rank's slices in newly allocated memory, as a LOCAL state dict, which LoadOptimStateDict loads under
// LOCAL settings. New programs call FullyShardedDataParallel::OptimStateDictToLoad, which takes the form from the
// settings.
//
// Entries of parameters outside all units, and param_groups if there is one, are copied unchanged. kInvalidArgument
// names an entry of another shape or form.
#ifndef FSDP_FSDP_OPTIM_FORMS_H_
#define FSDP_FSDP_OPTIM_FORMS_H_

#include "absl/status/statusor.h"
#include "fsdp/fsdp/fully_sharded_data_parallel.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// From whole tensors that every rank has. No communication, so an error stays on this rank.
absl::StatusOr<StateDict> ShardFullOptimStateDict(const FullyShardedDataParallel& model, const StateDict& full);

// From whole tensors that rank 0 has; `full` is null on the other ranks. kInvalidArgument on every rank if rank 0
// passes null. Collective; blocks.
absl::StatusOr<StateDict> ScatterFullOptimStateDict(const FullyShardedDataParallel& model, const StateDict* full);

// From each rank's chunks along dimension 0 (a SHARDED state dict). Collective; blocks.
absl::StatusOr<StateDict> FlattenShardedOptimStateDict(const FullyShardedDataParallel& model, const StateDict& sharded);

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIM_FORMS_H_
