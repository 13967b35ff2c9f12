// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/sharded_language_model.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group_hosts.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/wrap/auto_wrap.h"
#include "fsdp/train/frozen_parameters.h"

namespace fsdp {
namespace {

// The largest config.json that is read; real ones have some kilobytes.
constexpr int64_t kMaxConfigBytes = 16 << 20;

// One dimension, or (replicate, shard) for the hybrid strategies.
absl::StatusOr<std::shared_ptr<const DeviceMesh>> MeshOf(const FsdpOptions& options,
                                                         std::shared_ptr<ProcessGroup> group) {
  const int ranks = group->size();
  if (!IsHybrid(options.sharding_strategy)) return DeviceMesh::Create(std::move(group), {ranks}, {"shard"});
  int shards = options.shard_group_size.value_or(0);
  // Without a size the ranks of a host shard, since links within a host are the fastest.
  if (!options.shard_group_size.has_value()) {
    FSDP_ASSIGN_OR_RETURN(shards, RanksPerHost(*group));
  }
  if (shards < 1 || ranks % shards != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--shard_group_size=%d: expected a divisor of the %d ranks", shards, ranks));
  }
  return DeviceMesh::Create(std::move(group), {ranks / shards, shards}, {"replicate", "shard"});
}

// The options of one unit under FSDP2. A strategy that reshards after forward leaves reshard_after_forward unset, which
// keeps the root unsharded, as PyTorch's default does.
FullyShardOptions FullyShardOptionsOf(const TrainOptions& options) {
  const FsdpOptions& fsdp = options.fsdp;
  FullyShardOptions fully_shard;
  if (!ReshardsAfterForward(fsdp.sharding_strategy)) fully_shard.reshard_after_forward = false;
  fully_shard.mp_policy.param_dtype = fsdp.mixed_precision.param_dtype;
  fully_shard.mp_policy.reduce_dtype = fsdp.mixed_precision.reduce_dtype;
  if (fsdp.cpu_offload.offload_params) {
    fully_shard.offload_policy = CpuOffloadPolicy{.pin_memory = options.pin_memory};
  }
  fully_shard.activation_checkpointing = fsdp.activation_checkpointing;
  fully_shard.optimizer_casts = fsdp.optimizer_casts;
  fully_shard.init_seed = fsdp.init_seed;
  return fully_shard;
}

// FullyShard must be called bottom-up, and AutoWrap lists outer modules before inner ones, so the list is traversed
// backwards; the whole model comes last, as the root.
absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> MakeFullyShardedModel(std::unique_ptr<Module> module,
                                                                                const TrainOptions& options,
                                                                                std::shared_ptr<ProcessGroup> group,
                                                                                std::shared_ptr<Trace> trace) {
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const DeviceMesh> mesh, MeshOf(options.fsdp, std::move(group)));
  FullyShardOptions fully_shard = FullyShardOptionsOf(options);
  FSDP_ASSIGN_OR_RETURN(const std::vector<WrappedModule> wrapped,
                        AutoWrap(*module, {.auto_wrap_policy = options.fsdp.auto_wrap_policy}, {}));
  for (auto unit = wrapped.rbegin(); unit != wrapped.rend(); ++unit) {
    FSDP_RETURN_IF_ERROR(FullyShard(*unit->module, mesh, fully_shard).status());
  }
  // Only the root's output leaves the model. The root is not recomputed, since its forward contains the forward of
  // every unit.
  fully_shard.mp_policy.output_dtype = options.output_dtype;
  fully_shard.activation_checkpointing = false;
  fully_shard.trace = std::move(trace);
  FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(*module, mesh, fully_shard));
  if (options.fsdp.symm_mem_for_comm) {
    FSDP_RETURN_IF_ERROR(root->set_symm_mem_for_comm(true, Recurse::kYes));
  }
  if (options.fsdp.copy_engine_all_gather) FSDP_RETURN_IF_ERROR(root->set_copy_engine_all_gather());
  return FullyShardedDataParallel::FromFullyShard(std::move(module));
}

}  // namespace

std::string ModelConfigPath(const TrainOptions& options) {
  std::error_code ignored;
  std::filesystem::path path(options.config);
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  return path;
}

absl::StatusOr<CausalLmConfig> ReadModelConfig(const TrainOptions& options, std::vector<std::string>* notes) {
  const std::string& config = options.config;
  const std::filesystem::path path(ModelConfigPath(options));
  FSDP_ASSIGN_OR_RETURN(const std::filesystem::file_type type, TypeOfTarget(path));
  if (type == std::filesystem::file_type::not_found) {
    absl::StatusOr<CausalLmConfig> preset = CausalLmPreset(options.model, config);
    if (preset.ok()) return preset;
    return absl::NotFoundError(absl::StrFormat("--config=%s: is no file, and %s", config, preset.status().message()));
  }
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), path.string(), kMaxConfigBytes));
  absl::StatusOr<CausalLmConfig> parsed = ParseCausalLmConfig(options.model, text, notes);
  if (parsed.ok()) return parsed;
  return Annotate(parsed.status(), path.string());
}

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> MakeShardedModel(const CausalLmConfig& config,
                                                                           const TrainOptions& options,
                                                                           std::shared_ptr<ProcessGroup> group,
                                                                           std::shared_ptr<Trace> trace) {
  CausalLmConfig with_options = config;
  SetAttention(options.AttentionOn(group->device()->type()), with_options);
  if (options.loss_chunks > 0) SetLossChunks(options.loss_chunks, with_options);
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeCausalLm(with_options));
  // Buffers keep theirs, as under Hugging Face's torch_dtype. They have no memory yet.
  for (const auto& [name, parameter] : module->NamedParameters()) parameter->dtype = options.dtype;
  // Before sharding, which reads requires_grad.
  if (!options.freeze.empty()) FSDP_RETURN_IF_ERROR(FreezeParameters(options.freeze, *module));
  if (options.api == TrainApi::kFsdp2) {
    return MakeFullyShardedModel(std::move(module), options, std::move(group), std::move(trace));
  }
  FsdpOptions fsdp_options = options.fsdp;
  fsdp_options.trace = std::move(trace);
  return FullyShardedDataParallel::Wrap(std::move(module), std::move(group), fsdp_options);
}

}  // namespace fsdp
