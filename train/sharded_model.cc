// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/sharded_model.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/train/frozen_parameters.h"
#include "fsdp/train/fully_sharded_model.h"

namespace fsdp {
namespace {

WrapPolicy WrapPolicyOf(const WrapChoice& wrap) {
  switch (wrap.kind) {
    case WrapChoice::Kind::kBlock:
      return LambdaWrapPolicy(IsTransformerBlock);
    case WrapChoice::Kind::kSize:
      return SizeBasedWrapPolicy(wrap.min_num_params);
    case WrapChoice::Kind::kNone:
      break;
  }
  return WrapPolicy();
}

FsdpOptions FsdpOptionsOf(const TrainOptions& options) {
  FsdpOptions fsdp;
  fsdp.sharding_strategy = options.sharding_strategy;
  fsdp.shard_group_size = options.shard_group_size;
  fsdp.auto_wrap_policy = WrapPolicyOf(options.wrap);
  fsdp.use_orig_params = options.use_orig_params;
  fsdp.cpu_offload.offload_params = options.cpu_offload;
  fsdp.activation_checkpointing = options.activation_checkpointing;
  fsdp.init_seed = options.seed;
  fsdp.backward_prefetch = options.backward_prefetch;
  fsdp.forward_prefetch = options.forward_prefetch;
  fsdp.limit_all_gathers = options.limit_all_gathers;
  fsdp.optimizer_casts = options.optimizer_casts;
  MixedPrecision& precision = fsdp.mixed_precision;
  if (options.param_dtype != DType::kFloat32 || options.reduce_dtype != DType::kFloat32) {
    precision.param_dtype = options.param_dtype;
    precision.reduce_dtype = options.reduce_dtype;
  }
  if (options.buffer_dtype != DType::kFloat32) precision.buffer_dtype = options.buffer_dtype;
  precision.keep_low_precision_grads = options.keep_low_precision_grads;
  return fsdp;
}

}  // namespace

absl::StatusOr<CausalLmConfig> ReadModelConfig(const TrainOptions& options, std::vector<std::string>* notes) {
  const std::string& config = options.config;
  std::error_code ignored;
  std::filesystem::path path(config);
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  if (!std::filesystem::exists(path, ignored)) {
    absl::StatusOr<CausalLmConfig> preset = CausalLmPreset(options.model, config);
    if (preset.ok()) return preset;
    return absl::NotFoundError(absl::StrFormat("--config=%s: is no file, and %s", config, preset.status().message()));
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) return absl::InvalidArgumentError(absl::StrFormat("%s: cannot be read", path.string()));
  absl::StatusOr<CausalLmConfig> parsed = ParseCausalLmConfig(options.model, text.str(), notes);
  if (parsed.ok()) return parsed;
  return absl::Status(parsed.status().code(), absl::StrFormat("%s: %s", path.string(), parsed.status().message()));
}

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> MakeShardedModel(const CausalLmConfig& config,
                                                                           const TrainOptions& options,
                                                                           std::shared_ptr<ProcessGroup> group,
                                                                           std::shared_ptr<Trace> trace) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeCausalLm(config));
  if (!options.freeze.empty()) FSDP_RETURN_IF_ERROR(FreezeParameters(options.freeze, *module));
  if (options.api == TrainApi::kFsdp2) {
    return MakeFullyShardedModel(std::move(module), WrapPolicyOf(options.wrap), options, std::move(group),
                                 std::move(trace));
  }
  FsdpOptions fsdp_options = FsdpOptionsOf(options);
  fsdp_options.trace = std::move(trace);
  return FullyShardedDataParallel::Wrap(std::move(module), std::move(group), fsdp_options);
}

}  // namespace fsdp
