// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/optim_forms.h"

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/state/optim_state_reader.h"
#include "fsdp/fsdp/units/shard_groups.h"

namespace fsdp {

absl::StatusOr<StateDict> ShardFullOptimStateDict(const FullyShardedDataParallel& model, const StateDict& full) {
  return OptimSlices(ShardedModel::Of(model).units(), full, StateSource::kFull);
}

absl::StatusOr<StateDict> ScatterFullOptimStateDict(const FullyShardedDataParallel& model, const StateDict* full) {
  // The ranks agree before OptimSlices: the others would wait there for broadcasts that rank 0 never makes.
  const AllRanks ranks(ShardedModel::Of(model).units().groups());
  const bool absent = ranks.rank() == 0 && full == nullptr;
  FSDP_RETURN_IF_ERROR(ranks.AllReduceStatus(
      absent ? absl::InvalidArgumentError("rank 0 has no full optimizer state dict to scatter") : absl::OkStatus()));
  const StateDict nothing;
  return OptimSlices(ShardedModel::Of(model).units(), full != nullptr ? *full : nothing, StateSource::kFullFirst);
}

absl::StatusOr<StateDict> FlattenShardedOptimStateDict(const FullyShardedDataParallel& model,
                                                       const StateDict& sharded) {
  return OptimSlices(ShardedModel::Of(model).units(), sharded, StateSource::kSharded);
}

}  // namespace fsdp
