// SPDX-License-Identifier: Apache-2.0
//
// Single choices and numbers are checked first, then combinations. A flag that does not apply to the chosen interface
// or device is refused, so that no run ignores a request.
#include "fsdp/train/train_flag_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/train/train_flags.h"

namespace fsdp {
namespace {

absl::Status CheckChoice(std::string_view flag, std::string_view value, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  return BadFlagValue(flag, value, absl::StrJoin(known, " or "));
}

absl::Status CheckAtLeast(std::string_view flag, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return BadFlagValue(flag, absl::StrFormat("%d", value), absl::StrFormat("at least %d", least));
}

// OK if `value` is finite and at least 0, and below `limit`, if there is one.
absl::Status CheckNumber(std::string_view flag, double value, double limit = INFINITY) {
  if (std::isfinite(value) && value >= 0 && value < limit) return absl::OkStatus();
  return BadFlagValue(flag, absl::StrFormat("%g", value),
                      std::isfinite(limit) ? absl::StrFormat("0 <= number < %g", limit) : "a number, at least 0");
}

// The flags whose values are words.
absl::Status CheckChoices() {
  FSDP_RETURN_IF_ERROR(CheckChoice("device", absl::GetFlag(FLAGS_device), {"auto", "cpu", "cuda"}));
  FSDP_RETURN_IF_ERROR(CheckChoice("backend", absl::GetFlag(FLAGS_backend), {"auto", "shm", "net", "mpi", "nccl"}));
  FSDP_RETURN_IF_ERROR(CheckChoice("model", absl::GetFlag(FLAGS_model), {"gpt2", "llama"}));
  FSDP_RETURN_IF_ERROR(CheckChoice("sharding_strategy", absl::GetFlag(FLAGS_sharding_strategy),
                                   {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"}));
  FSDP_RETURN_IF_ERROR(CheckChoice("api", absl::GetFlag(FLAGS_api), {"fsdp1", "fsdp2"}));
  const std::vector<std::string> dtypes = {"float32", "bfloat16", "float16"};
  FSDP_RETURN_IF_ERROR(CheckChoice("dtype", absl::GetFlag(FLAGS_dtype), dtypes));
  FSDP_RETURN_IF_ERROR(CheckChoice("param_dtype", absl::GetFlag(FLAGS_param_dtype).value_or("float32"), dtypes));
  FSDP_RETURN_IF_ERROR(CheckChoice("reduce_dtype", absl::GetFlag(FLAGS_reduce_dtype), dtypes));
  FSDP_RETURN_IF_ERROR(CheckChoice("buffer_dtype", absl::GetFlag(FLAGS_buffer_dtype), dtypes));
  FSDP_RETURN_IF_ERROR(CheckChoice("output_dtype", absl::GetFlag(FLAGS_output_dtype).value_or("float32"), dtypes));
  FSDP_RETURN_IF_ERROR(CheckChoice("attention", absl::GetFlag(FLAGS_attention), {"auto", "eager", "online", "own"}));
  FSDP_RETURN_IF_ERROR(
      CheckChoice("optimizer", absl::GetFlag(FLAGS_optimizer), {"adamw", "adam", "sgd", "lion", "adafactor", "muon"}));
  FSDP_RETURN_IF_ERROR(
      CheckChoice("lr_schedule", absl::GetFlag(FLAGS_lr_schedule), {"auto", "constant", "cosine", "linear", "wsd"}));
  FSDP_RETURN_IF_ERROR(CheckChoice("grad_scaler", absl::GetFlag(FLAGS_grad_scaler), {"on", "off", "auto"}));
  FSDP_RETURN_IF_ERROR(
      CheckChoice("backward_prefetch", absl::GetFlag(FLAGS_backward_prefetch), {"pre", "post", "none"}));
  FSDP_RETURN_IF_ERROR(
      CheckChoice("state_dict_type", absl::GetFlag(FLAGS_state_dict_type), {"full", "sharded", "local"}));
  return CheckChoice("export_format", absl::GetFlag(FLAGS_export_format), {"safetensors", "torch", "dcp"});
}

// The name is part of messages between ranks and of error texts.
absl::Status CheckJob() {
  const std::string run_id = absl::GetFlag(FLAGS_run_id);
  if (run_id.size() > 128 ||
      !std::all_of(run_id.begin(), run_id.end(), [](char c) { return absl::ascii_isgraph(c); })) {
    // Ranks compare the name byte by byte; blanks would make messages ambiguous.
    return BadFlagValue("run_id", run_id, "at most 128 printable characters without spaces");
  }
  for (const auto& [name, value] :
       {std::pair("grace", absl::GetFlag(FLAGS_grace)), std::pair("join_timeout", absl::GetFlag(FLAGS_join_timeout))}) {
    // The grace becomes an alarm(2) of whole seconds, for which 0 means no limit.
    if (value < absl::Seconds(1)) return BadFlagValue(name, absl::FormatDuration(value), "at least 1s");
  }
  return absl::OkStatus();
}

// The flags whose values are numbers: counts are at least 0 or 1, rates are finite, betas are below 1.
absl::Status CheckNumbers() {
  FSDP_RETURN_IF_ERROR(CheckAtLeast("nproc", absl::GetFlag(FLAGS_nproc).value_or(1), 1));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("steps", absl::GetFlag(FLAGS_steps), 1));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("batch_size", absl::GetFlag(FLAGS_batch_size), 1));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("seq_len", absl::GetFlag(FLAGS_seq_len), 1));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("grad_accum", absl::GetFlag(FLAGS_grad_accum), 1));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("global_batch", absl::GetFlag(FLAGS_global_batch), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("shard_group_size", absl::GetFlag(FLAGS_shard_group_size), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("warmup_steps", absl::GetFlag(FLAGS_warmup_steps), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("lr_decay_steps", absl::GetFlag(FLAGS_lr_decay_steps), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("checkpoint_every", absl::GetFlag(FLAGS_checkpoint_every), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("keep_last", absl::GetFlag(FLAGS_keep_last), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("keep_every", absl::GetFlag(FLAGS_keep_every), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("parity", absl::GetFlag(FLAGS_parity), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("loss_chunks", absl::GetFlag(FLAGS_loss_chunks), 0));
  FSDP_RETURN_IF_ERROR(CheckNumber("lr", absl::GetFlag(FLAGS_lr)));
  FSDP_RETURN_IF_ERROR(CheckNumber("min_lr", absl::GetFlag(FLAGS_min_lr).value_or(0)));
  FSDP_RETURN_IF_ERROR(CheckNumber("weight_decay", absl::GetFlag(FLAGS_weight_decay)));
  FSDP_RETURN_IF_ERROR(CheckNumber("momentum", absl::GetFlag(FLAGS_momentum).value_or(0)));
  FSDP_RETURN_IF_ERROR(CheckNumber("beta1", absl::GetFlag(FLAGS_beta1), 1));
  FSDP_RETURN_IF_ERROR(CheckNumber("beta2", absl::GetFlag(FLAGS_beta2), 1));
  FSDP_RETURN_IF_ERROR(CheckNumber("eps", absl::GetFlag(FLAGS_eps)));
  if (absl::GetFlag(FLAGS_global_batch) > 0 && absl::GetFlag(FLAGS_grad_accum) > 1) {
    return absl::InvalidArgumentError(
        "--global_batch and --grad_accum: expected one of them; the first sets the other");
  }
  return CheckNumber("max_grad_norm", absl::GetFlag(FLAGS_max_grad_norm));
}

// A flag that belongs to the interface that --api does not choose is an error, never ignored.
absl::Status CheckApi() {
  if (absl::GetFlag(FLAGS_api) != "fsdp2") {
    if (!absl::GetFlag(FLAGS_output_dtype).has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError("--output_dtype: expected together with --api=fsdp2");
  }
  if (absl::GetFlag(FLAGS_sharding_strategy) == "no_shard") {
    return absl::InvalidArgumentError("--sharding_strategy=no_shard: expected together with --api=fsdp1");
  }
  if (absl::GetFlag(FLAGS_use_orig_params)) {
    return absl::InvalidArgumentError("--use_orig_params: expected together with --api=fsdp1");
  }
  if (absl::GetFlag(FLAGS_state_dict_type) == "local") {
    return absl::InvalidArgumentError("--state_dict_type=local: expected together with --api=fsdp1");
  }
  if (absl::GetFlag(FLAGS_buffer_dtype) != "float32" || absl::GetFlag(FLAGS_keep_low_precision_grads)) {
    return absl::InvalidArgumentError(
        "--buffer_dtype and --keep_low_precision_grads: expected together with --api=fsdp1");
  }
  if (absl::GetFlag(FLAGS_backward_prefetch) != "pre" || absl::GetFlag(FLAGS_forward_prefetch)) {
    return absl::InvalidArgumentError("--backward_prefetch and --forward_prefetch: expected together with --api=fsdp1");
  }
  return absl::OkStatus();
}

// A graph of GPU work cannot contain steps on the host.
absl::Status CheckCudaGraph() {
  if (absl::GetFlag(FLAGS_device) == "cpu") {
    return absl::InvalidArgumentError("--cuda_graph: expected a GPU, not --device=cpu");
  }
  if (absl::GetFlag(FLAGS_cpu_offload)) {
    return absl::InvalidArgumentError(
        "--cuda_graph: expected no --cpu_offload: the host's optimizer step "
        "cannot be captured");
  }
  if (absl::GetFlag(FLAGS_optimizer) != "adamw" || absl::GetFlag(FLAGS_amsgrad)) {
    return absl::InvalidArgumentError("--cuda_graph: expected --optimizer=adamw without --amsgrad");
  }
  if (!absl::GetFlag(FLAGS_trace).empty()) {
    return absl::InvalidArgumentError(
        "--cuda_graph: expected no --trace: the host does not see when "
        "captured work runs");
  }
  return absl::OkStatus();
}

// The names that it matches are known only with a model (frozen_parameters.h).
absl::Status CheckFreeze() {
  return Annotate(NameFilter::Create({{absl::GetFlag(FLAGS_freeze)}, {}, {}}).status(), "--freeze");
}

// A decay without a schedule that decays, or one that does not fit into the run, would not be what the flags say.
absl::Status CheckSchedule() {
  const std::string schedule = absl::GetFlag(FLAGS_lr_schedule);
  const bool has_min_lr = absl::GetFlag(FLAGS_min_lr).has_value();
  const int64_t decay_steps = absl::GetFlag(FLAGS_lr_decay_steps);
  const bool decays = schedule == "auto" ? has_min_lr : schedule != "constant";
  if (!decays && has_min_lr) {
    return absl::InvalidArgumentError("--min_lr: expected together with --lr_schedule=cosine, linear or wsd");
  }
  if (!decays && decay_steps > 0) {
    return absl::InvalidArgumentError("--lr_decay_steps: expected together with --lr_schedule=cosine, linear or wsd");
  }
  const int64_t room = absl::GetFlag(FLAGS_steps) - absl::GetFlag(FLAGS_warmup_steps);
  if (schedule != "wsd" || std::max<int64_t>(1, decay_steps) <= room) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "--lr_schedule=wsd: expected at least --warmup_steps + --lr_decay_steps, %d, as --steps, not %d",
      absl::GetFlag(FLAGS_warmup_steps) + std::max<int64_t>(1, decay_steps), absl::GetFlag(FLAGS_steps)));
}

template <typename T>
bool IsChanged(const absl::Flag<T>& flag, const T& otherwise) {
  return absl::GetFlag(flag) != otherwise;
}

// A number of another optimizer would be ignored.
absl::Status CheckOptimizer() {
  const std::string optimizer = absl::GetFlag(FLAGS_optimizer);
  const bool is_adam = optimizer == "adamw" || optimizer == "adam";
  const bool has_adamw = is_adam || optimizer == "muon";
  const bool has_betas = has_adamw || optimizer == "lion";
  const bool has_momentum = optimizer == "sgd" || optimizer == "muon";
  const std::tuple<const char*, bool, bool, const char*> numbers[] = {
      {"amsgrad", absl::GetFlag(FLAGS_amsgrad), has_adamw, "adamw, adam or muon"},
      {"momentum", absl::GetFlag(FLAGS_momentum).has_value(), has_momentum, "sgd or muon"},
      {"beta1", IsChanged(FLAGS_beta1, 0.9), has_betas, "adamw, adam, lion or muon"},
      {"beta2", IsChanged(FLAGS_beta2, 0.95), has_betas, "adamw, adam, lion or muon"},
      {"eps", IsChanged(FLAGS_eps, 1e-8), has_adamw, "adamw, adam or muon"}};
  for (const auto& [flag, is_given, applies, optimizers] : numbers) {
    if (!is_given || applies) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("--%s: expected together with --optimizer=%s, not %s", flag, optimizers, optimizer));
  }
  return absl::OkStatus();
}

// What 16 bits of --dtype have no use for, or alone have. The seed is in checkpoints, as a double.
absl::Status CheckDTypes() {
  if (absl::GetFlag(FLAGS_dtype) != "float32" && absl::GetFlag(FLAGS_keep_low_precision_grads)) {
    return absl::InvalidArgumentError(
        "--keep_low_precision_grads: expected together with --dtype=float32, since other gradients are in 16 bits");
  }
  if (!absl::GetFlag(FLAGS_bf16_stochastic_round)) return absl::OkStatus();
  if (absl::GetFlag(FLAGS_dtype) != "bfloat16") {
    return absl::InvalidArgumentError("--bf16_stochastic_round: expected together with --dtype=bfloat16");
  }
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  if (seed <= uint64_t{1} << 53) return absl::OkStatus();
  return BadFlagValue("seed", absl::StrFormat("%d", seed), "at most 2^53 together with --bf16_stochastic_round");
}

absl::Status CheckGradScaler() {
  if (ScalesGradients()) {
    if (absl::GetFlag(FLAGS_optimizer) == "muon") {
      return absl::InvalidArgumentError(
          "--optimizer=muon: expected no --grad_scaler, nor float16: the scaler decides for one optimizer");
    }
    // The library checks the numbers, with its own names for them.
    return Annotate(Validate(GradScalerFromFlags()), "--grad_scaler");
  }
  if (!absl::GetFlag(FLAGS_init_scale).has_value() && !absl::GetFlag(FLAGS_growth_interval).has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--init_scale and --growth_interval: expected together with --dtype or --param_dtype=float16 or "
      "--grad_scaler=on");
}

// A step of ours that --resume=auto finds needs no roles, so only a path does.
absl::Status CheckMap() {
  const std::string resume = absl::GetFlag(FLAGS_resume);
  const bool has_path = !absl::GetFlag(FLAGS_init_from).empty() || (resume != "auto" && resume != "none");
  if (absl::GetFlag(FLAGS_map).values.empty() || has_path) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--map: expected together with --init_from or --resume=PATH, whose values it names");
}

// Flags that have a meaning only together with another one.
absl::Status CheckCombinations() {
  FSDP_RETURN_IF_ERROR(CheckApi());
  FSDP_RETURN_IF_ERROR(CheckSchedule());
  FSDP_RETURN_IF_ERROR(CheckOptimizer());
  FSDP_RETURN_IF_ERROR(CheckDTypes());
  FSDP_RETURN_IF_ERROR(CheckGradScaler());
  FSDP_RETURN_IF_ERROR(CheckMap());
  // Without offloading there is no such memory.
  if (absl::GetFlag(FLAGS_pin_memory) && !absl::GetFlag(FLAGS_cpu_offload)) {
    return absl::InvalidArgumentError("--pin_memory: expected together with --cpu_offload");
  }
  if (absl::GetFlag(FLAGS_symm_mem_for_comm) && absl::GetFlag(FLAGS_device) == "cpu") {
    return absl::InvalidArgumentError("--symm_mem_for_comm: expected GPUs, not --device=cpu");
  }
  if (absl::GetFlag(FLAGS_copy_engine_all_gather) && !absl::GetFlag(FLAGS_symm_mem_for_comm)) {
    return absl::InvalidArgumentError("--copy_engine_all_gather: expected together with --symm_mem_for_comm");
  }
  if (absl::GetFlag(FLAGS_loss_chunks) > 0 && absl::GetFlag(FLAGS_output_dtype).has_value()) {
    return absl::InvalidArgumentError(
        "--loss_chunks and --output_dtype: expected one of them; with the first the model has no logits as output");
  }
  if (absl::GetFlag(FLAGS_cuda_graph)) FSDP_RETURN_IF_ERROR(CheckCudaGraph());
  if (!absl::GetFlag(FLAGS_data).empty() && !absl::GetFlag(FLAGS_tokens).empty()) {
    return absl::InvalidArgumentError("--data and --tokens: expected only one of the two");
  }
  if (absl::GetFlag(FLAGS_rank0_only) && absl::GetFlag(FLAGS_state_dict_type) != "full") {
    return absl::InvalidArgumentError("--rank0_only: expected together with --state_dict_type=full");
  }
  const bool hybrid = absl::StartsWith(absl::GetFlag(FLAGS_sharding_strategy), "hybrid_shard");
  if (!hybrid && absl::GetFlag(FLAGS_shard_group_size) > 0) {
    return absl::InvalidArgumentError(
        "--shard_group_size: expected together with --sharding_strategy=hybrid_shard or hybrid_shard_zero2");
  }
  if (absl::GetFlag(FLAGS_parity) > 0 && absl::GetFlag(FLAGS_state_dict_type) == "full") {
    return absl::InvalidArgumentError(
        "--parity: expected --state_dict_type=sharded or local; a full checkpoint has no rank files");
  }
  if (absl::GetFlag(FLAGS_incremental) && absl::GetFlag(FLAGS_state_dict_type) == "full") {
    return absl::InvalidArgumentError(
        "--incremental: expected --state_dict_type=sharded or local; a full checkpoint is one file, written whole");
  }
  if (absl::GetFlag(FLAGS_keep_every) > 0 && absl::GetFlag(FLAGS_keep_last) == 0) {
    return absl::InvalidArgumentError(
        "--keep_every: expected together with --keep_last; without that flag all checkpoints are kept");
  }
  if (const std::string upload = absl::GetFlag(FLAGS_upload); !upload.empty()) {
    FSDP_RETURN_IF_ERROR(Annotate(ParseS3Url(upload).status(), "--upload"));
  }
  // The flags below need a directory.
  if (!absl::GetFlag(FLAGS_checkpoint_dir).empty()) return absl::OkStatus();
  if (!absl::GetFlag(FLAGS_upload).empty()) {
    return absl::InvalidArgumentError(
        "--upload: expected together with --checkpoint_dir, since the checkpoints saved there are uploaded");
  }
  if (absl::GetFlag(FLAGS_checkpoint_every) > 0 || absl::GetFlag(FLAGS_keep_last) > 0) {
    return absl::InvalidArgumentError("--checkpoint_every and --keep_last: expected together with --checkpoint_dir");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BadFlagValue(std::string_view flag, std::string_view value, std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrFormat("--%s=%s: expected %s", flag, value, expected));
}

// As PyTorch users do: float16 is scaled, other dtypes need no scale.
bool ScalesGradients() {
  const std::string scaler = absl::GetFlag(FLAGS_grad_scaler);
  if (scaler != "auto") return scaler == "on";
  return absl::GetFlag(FLAGS_dtype) == "float16" || absl::GetFlag(FLAGS_param_dtype) == "float16" ||
         absl::GetFlag(FLAGS_reduce_dtype) == "float16";
}

GradScalerOptions GradScalerFromFlags() {
  GradScalerOptions options;
  options.init_scale = absl::GetFlag(FLAGS_init_scale).value_or(options.init_scale);
  options.growth_interval = absl::GetFlag(FLAGS_growth_interval).value_or(options.growth_interval);
  return options;
}

absl::Status CheckTrainFlags() {
  // In this order: the first message should be about the flag itself, not about its combination with others.
  FSDP_RETURN_IF_ERROR(CheckChoices());
  FSDP_RETURN_IF_ERROR(CheckNumbers());
  FSDP_RETURN_IF_ERROR(CheckJob());
  FSDP_RETURN_IF_ERROR(CheckFreeze());
  return CheckCombinations();
}

}  // namespace fsdp
