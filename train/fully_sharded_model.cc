// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/fully_sharded_model.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/wrap/auto_wrap.h"

namespace fsdp {
namespace {

absl::StatusOr<std::shared_ptr<const DeviceMesh>> MeshOf(const TrainOptions& options,
                                                         std::shared_ptr<ProcessGroup> group) {
  const int ranks = group->size();
  if (!IsHybrid(options.sharding_strategy)) return DeviceMesh::Create(std::move(group), {ranks}, {"shard"});
  const int shards = options.shard_group_size;
  if (ranks % shards != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--shard_group_size=%d: expected a divisor of the %d ranks", shards, ranks));
  }
  return DeviceMesh::Create(std::move(group), {ranks / shards, shards}, {"replicate", "shard"});
}

FullyShardOptions FullyShardOptionsOf(const TrainOptions& options) {
  FullyShardOptions fully_shard;
  if (!ReshardsAfterForward(options.sharding_strategy)) fully_shard.reshard_after_forward = false;
  if (options.param_dtype != DType::kFloat32 || options.reduce_dtype != DType::kFloat32) {
    fully_shard.mp_policy.param_dtype = options.param_dtype;
    fully_shard.mp_policy.reduce_dtype = options.reduce_dtype;
  }
  if (options.cpu_offload) fully_shard.offload_policy = CpuOffloadPolicy{.pin_memory = options.pin_memory};
  fully_shard.init_seed = options.seed;
  return fully_shard;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> MakeFullyShardedModel(std::unique_ptr<Module> module,
                                                                                const WrapPolicy& policy,
                                                                                const TrainOptions& options,
                                                                                std::shared_ptr<ProcessGroup> group,
                                                                                std::shared_ptr<Trace> trace) {
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const DeviceMesh> mesh, MeshOf(options, std::move(group)));
  FullyShardOptions fully_shard = FullyShardOptionsOf(options);
  fully_shard.activation_checkpointing = options.activation_checkpointing;
  fully_shard.optimizer_casts = options.optimizer_casts;
  FSDP_ASSIGN_OR_RETURN(const std::vector<WrappedModule> wrapped, AutoWrap(*module, {.auto_wrap_policy = policy}, {}));
  // Inner modules first.
  for (auto one = wrapped.rbegin(); one != wrapped.rend(); ++one) {
    FSDP_RETURN_IF_ERROR(FullyShard(*one->module, mesh, fully_shard).status());
  }
  // What leaves the model; the activations between its units stay as they were computed.
  fully_shard.mp_policy.output_dtype = options.output_dtype;
  fully_shard.activation_checkpointing = false;
  fully_shard.trace = std::move(trace);
  FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, fully_shard).status());
  return FullyShardedDataParallel::FromFullyShard(std::move(module));
}

}  // namespace fsdp
