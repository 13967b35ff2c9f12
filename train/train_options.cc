// SPDX-License-Identifier: Apache-2.0
//
// Flags are read in three passes: choices and numbers by themselves, then combinations, then conversion to options,
// which also checks the flags that it has to parse. All errors of the first two passes are found before anything is
// built, and name the flag. A flag that the chosen interface or device has no use for is refused, so that no run
// ignores what it was asked for.
#include "fsdp/train/train_options.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/train/run_attributes.h"

ABSL_FLAG(std::optional<int>, nproc, std::nullopt,
          "ranks to start on this host (default: its GPUs, else 2); where RANK and WORLD_SIZE are in the environment, "
          "join that job instead");
ABSL_FLAG(std::string, run_id, "",
          "name of the job, the same for all its ranks: ranks of jobs with other names never join it (default: the "
          "launcher's, torchrun's, Slurm's or MPI's, else user, directory and command line)");
ABSL_FLAG(absl::Duration, join_timeout, absl::Minutes(10),
          "how long a rank waits at the start for all others, before it ends with status 75; 1m is enough under a "
          "launcher that starts all ranks at once, such as torchrun");
ABSL_FLAG(
    absl::Duration, grace, absl::Seconds(60),
    "how long the step under way may take after SIGTERM (at least: three times the longest step so far); then the "
    "run ends without a save; a save is not timed, but by `launch --grace` (30 s) or a scheduler that sent the signal");
ABSL_FLAG(std::string, device, "auto", "auto (a GPU if there is one), cpu or cuda");
ABSL_FLAG(bool, share_gpu, false, "let ranks outnumber GPUs; NCCL then talks through sockets, which is slow");
ABSL_FLAG(
    std::string, backend, "auto",
    "what joins the ranks: auto (nccl on GPUs, else shm on one host and net between hosts), shm, net (UCX), mpi (the "
    "MPI that this program was built with; its launcher starts the ranks) or nccl");
ABSL_FLAG(std::string, model, "gpt2", "gpt2 or llama");
ABSL_FLAG(std::optional<std::string>, config, std::nullopt,
          "a Hugging Face config.json, or a preset: gpt2-tiny (default), gpt2-124m, ..., llama-tiny (default with "
          "--model=llama), llama-3.2-1b, ...");
ABSL_FLAG(
    std::string, init_from, "",
    "weights to start from: a Hugging Face directory, a safetensors or torch file, a DCP directory, or a checkpoint of "
    "ours; its model only");
ABSL_FLAG(
    std::string, flat_layout, "",
    "JSON file that says what FSDP1's flat parameters are made of in what --init_from and --resume name: "
    "{\"parameters\": [{\"name\", \"shape\"}, ...], \"units\": [...]} (default: the parameters of --config, in order, "
    "with the units that their names and sizes tell)");
ABSL_FLAG(std::string, data, "",
          "text files by pattern, as byte-level tokens (default: this repository's own sources)");
ABSL_FLAG(std::string, tokens, "", "raw little-endian tokens, uint16 or, in a .u32 file, uint32");

ABSL_FLAG(int64_t, steps, 100, "steps in total, those before a resume included");
ABSL_FLAG(int64_t, batch_size, 8, "rows per rank and micro-step");
ABSL_FLAG(int64_t, seq_len, 64, "tokens per row");
ABSL_FLAG(int, grad_accum, 1, "micro-steps per step");
ABSL_FLAG(int64_t, global_batch, 0,
          "rows per step over all ranks: grad_accum follows from it and the number of ranks, so that a run which "
          "continues on another number trains the same steps (0: as batch_size and grad_accum say)");
ABSL_FLAG(double, lr, 1e-3, "learning rate, the highest");
ABSL_FLAG(std::optional<double>, min_lr, std::nullopt,
          "learning rate at the end of the cosine (default: lr, constant)");
ABSL_FLAG(int64_t, warmup_steps, 0, "steps of linear warm-up");
ABSL_FLAG(double, weight_decay, 0.1, "of parameters with two or more dimensions");
ABSL_FLAG(double, beta1, 0.9, "AdamW's");
ABSL_FLAG(double, beta2, 0.95, "AdamW's");
ABSL_FLAG(double, eps, 1e-8, "AdamW's");
ABSL_FLAG(std::string, freeze, "",
          "parameters that stay as they are: a regular expression that matches anywhere in their names; units that mix "
          "them with others want --use_orig_params or --api=fsdp2");
ABSL_FLAG(double, max_grad_norm, 1.0, "gradients are scaled down to this norm (0: never)");
ABSL_FLAG(uint64_t, seed, 0, "of the initial weights");

ABSL_FLAG(std::string, sharding_strategy, "full_shard",
          "full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2");
ABSL_FLAG(int, shard_group_size, 0,
          "ranks per shard group of the hybrid strategies; the groups replicate; 0: the ranks of each host");
ABSL_FLAG(std::string, wrap, "block", "units: block (each transformer block), size:N (at least N parameters) or none");
ABSL_FLAG(std::string, api, "fsdp1",
          "fsdp1, or fsdp2: fully_shard, where full_shard keeps the root unsharded after forward and shard_grad_op is "
          "reshard_after_forward=False");
ABSL_FLAG(bool, use_orig_params, false, "FSDP1's aligned flat layout");
ABSL_FLAG(std::string, param_dtype, "float32",
          "of unsharded parameters and of compute: float32, bfloat16, or float16 on hosts, whose losses are scaled");
ABSL_FLAG(std::string, reduce_dtype, "float32", "of the gradient reduction: float32, bfloat16 or float16");
ABSL_FLAG(std::string, buffer_dtype, "float32", "of floating-point buffers: float32, bfloat16 or float16");
ABSL_FLAG(std::optional<std::string>, output_dtype, std::nullopt,
          "with --api=fsdp2, of the logits: float32, bfloat16 or float16 (default: param_dtype)");
ABSL_FLAG(
    std::string, grad_scaler, "auto",
    "scale the loss so that small gradients survive float16, and leave out steps whose gradients overflow: on, off "
    "or auto (with --param_dtype or --reduce_dtype float16)");
ABSL_FLAG(std::optional<double>, init_scale, std::nullopt, "of --grad_scaler, the first scale (default: 65536)");
ABSL_FLAG(std::optional<int>, growth_interval, std::nullopt,
          "of --grad_scaler, steps without overflow before the scale is doubled (default: 2000)");
ABSL_FLAG(bool, keep_low_precision_grads, false, "give the optimizer gradients in param_dtype");
ABSL_FLAG(bool, cpu_offload, false, "keep shards, gradients and optimizer state in host memory");
ABSL_FLAG(bool, pin_memory, false,
          "with --cpu_offload, pin that memory, so that copies overlap with compute; fsdp1 always does");
ABSL_FLAG(bool, activation_checkpointing, false,
          "keep only the input of each unit for backward, which runs its forward again");
ABSL_FLAG(std::string, backward_prefetch, "pre", "pre, post or none");
ABSL_FLAG(bool, forward_prefetch, false, "all-gather the next unit before the current one's forward");
ABSL_FLAG(bool, limit_all_gathers, true, "keep no more unsharded units than the schedule needs");
ABSL_FLAG(bool, optimizer_casts, false, "let the optimizer write the bfloat16 parameters that all-gathers start from");

ABSL_FLAG(bool, cuda_graph, false,
          "on GPUs, capture a training step after two and replay it from then on, with the same results; without "
          "--cpu_offload and --trace");

ABSL_FLAG(std::string, checkpoint_dir, "", "where step-K directories are saved; made if needed");
ABSL_FLAG(int64_t, checkpoint_every, 0, "save after every N steps, and after the last (0: after the last only)");
ABSL_FLAG(int, keep_last, 0, "delete all but the newest K checkpoints after each save (0: keep all)");
ABSL_FLAG(int64_t, keep_every, 0, "with --keep_last, keep the checkpoints of steps that N divides too (0: none)");
ABSL_FLAG(std::string, state_dict_type, "sharded", "full, sharded or local");
ABSL_FLAG(bool, rank0_only, false, "with full: rank 0 alone writes, and gets the state unit by unit");
ABSL_FLAG(bool, offload_to_cpu, false, "state dicts in host memory");
ABSL_FLAG(bool, async_checkpoint, false, "train on while a checkpoint is written; memory for a copy of the state");
ABSL_FLAG(bool, incremental, false, "link what a checkpoint has in common with the one before, such as frozen layers");
ABSL_FLAG(int, parity, 0, "K extra files from which any K lost rank files can be rebuilt (ckpt repair)");
ABSL_FLAG(
    std::string, resume, "auto",
    "auto (the newest checkpoint that verifies), none, or the path of a checkpoint: ours, a torch file or directory, "
    "a DCP directory");
ABSL_FLAG(
    std::string, allow, "",
    "what may differ from the checkpoint that --resume or --init_from names, separated by commas: names as the log and "
    "ckpt inspect --diff_options print them (model.n_head, data.digest, options.lr), or all of model, data or options; "
    "a model that differs in a name that is not here is refused, other differences are listed");
ABSL_FLAG(bool, overwrite, false, "let this run replace the checkpoints that checkpoint_dir and --upload hold");
ABSL_FLAG(std::string, upload, "",
          "s3://BUCKET/PREFIX: also copy each checkpoint to this object store, while training goes on; --resume=auto "
          "asks it too (keys and endpoint: AWS_* and ~/.aws)");

ABSL_FLAG(std::string, metrics, "", "a file of JSON lines, one a step; appended to on a resume");
ABSL_FLAG(std::string, export, "", "after the last step, a Hugging Face directory: config.json and model.safetensors");
ABSL_FLAG(
    std::string, export_format, "safetensors",
    "what --export writes in addition to config.json: safetensors; torch, pytorch_model.bin; dcp, the files of a DCP "
    "directory");
ABSL_FLAG(std::string, trace, "",
          "Chrome trace JSON of the run (opens in Perfetto): each rank's streams, units, collectives");
ABSL_FLAG(bool, print_schedule, false, "print the schedule of one step for rank 0, and exit without training");

namespace fsdp {
namespace {

absl::Status BadValue(std::string_view flag, std::string_view value, std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrFormat("--%s=%s: expected %s", flag, value, expected));
}

absl::Status CheckChoice(std::string_view flag, std::string_view value, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  return BadValue(flag, value, absl::StrJoin(known, " or "));
}

absl::Status CheckAtLeast(std::string_view flag, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return BadValue(flag, absl::StrFormat("%d", value), absl::StrFormat("at least %d", least));
}

// OK when `value` is finite and at least 0, and below `limit`, if there is one.
absl::Status CheckNumber(std::string_view flag, double value, double limit = INFINITY) {
  if (std::isfinite(value) && value >= 0 && value < limit) return absl::OkStatus();
  return BadValue(flag, absl::StrFormat("%g", value),
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
  FSDP_RETURN_IF_ERROR(CheckChoice("param_dtype", absl::GetFlag(FLAGS_param_dtype), dtypes));
  FSDP_RETURN_IF_ERROR(CheckChoice("reduce_dtype", absl::GetFlag(FLAGS_reduce_dtype), dtypes));
  FSDP_RETURN_IF_ERROR(CheckChoice("buffer_dtype", absl::GetFlag(FLAGS_buffer_dtype), dtypes));
  FSDP_RETURN_IF_ERROR(CheckChoice("output_dtype", absl::GetFlag(FLAGS_output_dtype).value_or("float32"), dtypes));
  FSDP_RETURN_IF_ERROR(CheckChoice("grad_scaler", absl::GetFlag(FLAGS_grad_scaler), {"on", "off", "auto"}));
  FSDP_RETURN_IF_ERROR(
      CheckChoice("state_dict_type", absl::GetFlag(FLAGS_state_dict_type), {"full", "sharded", "local"}));
  return CheckChoice("export_format", absl::GetFlag(FLAGS_export_format), {"safetensors", "torch", "dcp"});
}

// The name is part of messages between ranks and of error texts.
absl::Status CheckJob() {
  const std::string run_id = absl::GetFlag(FLAGS_run_id);
  if (run_id.size() > 128 ||
      !std::all_of(run_id.begin(), run_id.end(), [](char c) { return absl::ascii_isgraph(c); })) {
    return BadValue("run_id", run_id, "at most 128 printable characters without spaces");
  }
  for (const auto& [name, value] :
       {std::pair("grace", absl::GetFlag(FLAGS_grace)), std::pair("join_timeout", absl::GetFlag(FLAGS_join_timeout))}) {
    if (value < absl::Seconds(1)) return BadValue(name, absl::FormatDuration(value), "at least 1s");
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
  FSDP_RETURN_IF_ERROR(CheckAtLeast("checkpoint_every", absl::GetFlag(FLAGS_checkpoint_every), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("keep_last", absl::GetFlag(FLAGS_keep_last), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("keep_every", absl::GetFlag(FLAGS_keep_every), 0));
  FSDP_RETURN_IF_ERROR(CheckAtLeast("parity", absl::GetFlag(FLAGS_parity), 0));
  FSDP_RETURN_IF_ERROR(CheckNumber("lr", absl::GetFlag(FLAGS_lr)));
  FSDP_RETURN_IF_ERROR(CheckNumber("min_lr", absl::GetFlag(FLAGS_min_lr).value_or(0)));
  FSDP_RETURN_IF_ERROR(CheckNumber("weight_decay", absl::GetFlag(FLAGS_weight_decay)));
  FSDP_RETURN_IF_ERROR(CheckNumber("beta1", absl::GetFlag(FLAGS_beta1), 1));
  FSDP_RETURN_IF_ERROR(CheckNumber("beta2", absl::GetFlag(FLAGS_beta2), 1));
  FSDP_RETURN_IF_ERROR(CheckNumber("eps", absl::GetFlag(FLAGS_eps)));
  if (absl::GetFlag(FLAGS_global_batch) > 0 && absl::GetFlag(FLAGS_grad_accum) > 1) {
    return absl::InvalidArgumentError(
        "--global_batch and --grad_accum: expected one of them; the first sets the other");
  }
  return CheckNumber("max_grad_norm", absl::GetFlag(FLAGS_max_grad_norm));
}

// Each flag that belongs to the other interface than --api chooses is an error, never ignored.
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

// A graph of GPU work has no steps on the host in it.
absl::Status CheckCudaGraph() {
  if (absl::GetFlag(FLAGS_device) == "cpu") {
    return absl::InvalidArgumentError("--cuda_graph: expected a GPU, not --device=cpu");
  }
  if (absl::GetFlag(FLAGS_cpu_offload)) {
    return absl::InvalidArgumentError(
        "--cuda_graph: expected no --cpu_offload: the host's optimizer step "
        "cannot be captured");
  }
  if (!absl::GetFlag(FLAGS_trace).empty()) {
    return absl::InvalidArgumentError(
        "--cuda_graph: expected no --trace: the host does not see when "
        "captured work runs");
  }
  return absl::OkStatus();
}

// Which names it matches is known once there is a model (frozen_parameters.h).
absl::Status CheckFreeze() {
  return Annotate(NameFilter::Create({{absl::GetFlag(FLAGS_freeze)}, {}, {}}).status(), "--freeze");
}

// As PyTorch users do it: float16 is scaled, other dtypes need no scale.
bool ScalesGradients() {
  const std::string scaler = absl::GetFlag(FLAGS_grad_scaler);
  if (scaler != "auto") return scaler == "on";
  return absl::GetFlag(FLAGS_param_dtype) == "float16" || absl::GetFlag(FLAGS_reduce_dtype) == "float16";
}

GradScalerOptions ReadGradScaler() {
  GradScalerOptions options;
  options.init_scale = absl::GetFlag(FLAGS_init_scale).value_or(options.init_scale);
  options.growth_interval = absl::GetFlag(FLAGS_growth_interval).value_or(options.growth_interval);
  return options;
}

absl::Status CheckGradScaler() {
  if (ScalesGradients()) {
    if (absl::GetFlag(FLAGS_cuda_graph)) {
      return absl::InvalidArgumentError("--cuda_graph: expected no --grad_scaler: the host decides which steps count");
    }
    return Annotate(Validate(ReadGradScaler()), "--grad_scaler");
  }
  if (!absl::GetFlag(FLAGS_init_scale).has_value() && !absl::GetFlag(FLAGS_growth_interval).has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--init_scale and --growth_interval: expected together with --param_dtype=float16 or --grad_scaler=on");
}

// Flags that have a meaning only together with another one.
absl::Status CheckCombinations() {
  FSDP_RETURN_IF_ERROR(CheckApi());
  FSDP_RETURN_IF_ERROR(CheckGradScaler());
  if (absl::GetFlag(FLAGS_pin_memory) && !absl::GetFlag(FLAGS_cpu_offload)) {
    return absl::InvalidArgumentError("--pin_memory: expected together with --cpu_offload");
  }
  if (absl::GetFlag(FLAGS_optimizer_casts) &&
      (absl::GetFlag(FLAGS_param_dtype) != "bfloat16" || absl::GetFlag(FLAGS_cpu_offload))) {
    return absl::InvalidArgumentError(
        "--optimizer_casts: expected together with --param_dtype=bfloat16 and without --cpu_offload");
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
  if (!absl::GetFlag(FLAGS_checkpoint_dir).empty()) return absl::OkStatus();
  if (!absl::GetFlag(FLAGS_upload).empty()) {
    return absl::InvalidArgumentError(
        "--upload: expected together with --checkpoint_dir, since what is saved there is what is uploaded");
  }
  if (absl::GetFlag(FLAGS_checkpoint_every) > 0 || absl::GetFlag(FLAGS_keep_last) > 0) {
    return absl::InvalidArgumentError("--checkpoint_every and --keep_last: expected together with --checkpoint_dir");
  }
  return absl::OkStatus();
}

// block, none or size:N, as the policy that AutoWrap takes. A default WrapPolicy makes the whole model one unit.
absl::StatusOr<WrapPolicy> ParseWrap(const std::string& value) {
  if (value == "block") return LambdaWrapPolicy(IsTransformerBlock);
  if (value == "none") return WrapPolicy();
  int64_t min_num_params = 0;
  if (absl::StartsWith(value, "size:") && absl::SimpleAtoi(value.substr(5), &min_num_params) && min_num_params > 0) {
    return SizeBasedWrapPolicy(min_num_params);
  }
  return BadValue("wrap", value, "block, size:N with N > 0, or none");
}

// Every value other than the two words is a path, which is opened when the run starts.
absl::StatusOr<ResumeChoice> ParseResume(const std::string& value) {
  if (value == "auto") return ResumeChoice{ResumeChoice::Kind::kAuto, ""};
  if (value == "none") return ResumeChoice{ResumeChoice::Kind::kNone, ""};
  if (!value.empty()) return ResumeChoice{ResumeChoice::Kind::kPath, value};
  return BadValue("resume", value, "auto, none or a checkpoint's path");
}

// `name` is one of the choices that CheckChoices allows.
DeviceChoice ParseDevice(std::string_view name) {
  if (name == "cuda") return DeviceChoice::kCuda;
  return name == "cpu" ? DeviceChoice::kCpu : DeviceChoice::kAuto;
}

// min_lr defaults to lr, which makes the cosine a constant.
void ReadSteps(TrainOptions& options) {
  const double lr = absl::GetFlag(FLAGS_lr);
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.seq_len = absl::GetFlag(FLAGS_seq_len);
  options.grad_accum = absl::GetFlag(FLAGS_grad_accum);
  options.global_batch = absl::GetFlag(FLAGS_global_batch);
  options.learning_rate = {.lr = lr,
                           .min_lr = absl::GetFlag(FLAGS_min_lr).value_or(lr),
                           .warmup_steps = absl::GetFlag(FLAGS_warmup_steps),
                           .steps = absl::GetFlag(FLAGS_steps)};
  options.adamw = {.lr = lr,
                   .beta1 = absl::GetFlag(FLAGS_beta1),
                   .beta2 = absl::GetFlag(FLAGS_beta2),
                   .eps = absl::GetFlag(FLAGS_eps),
                   .weight_decay = absl::GetFlag(FLAGS_weight_decay)};
  options.max_grad_norm = absl::GetFlag(FLAGS_max_grad_norm);
}

absl::StatusOr<MixedPrecision> ReadPrecision() {
  MixedPrecision precision;
  FSDP_ASSIGN_OR_RETURN(const DType param_dtype, ParseDType(absl::GetFlag(FLAGS_param_dtype)));
  FSDP_ASSIGN_OR_RETURN(const DType reduce_dtype, ParseDType(absl::GetFlag(FLAGS_reduce_dtype)));
  FSDP_ASSIGN_OR_RETURN(const DType buffer_dtype, ParseDType(absl::GetFlag(FLAGS_buffer_dtype)));
  // The two dtypes are set together or not at all: an unset reduce_dtype would follow param_dtype, and the flag's
  // default is float32.
  if (param_dtype != DType::kFloat32 || reduce_dtype != DType::kFloat32) {
    precision.param_dtype = param_dtype;
    precision.reduce_dtype = reduce_dtype;
  }
  if (buffer_dtype != DType::kFloat32) precision.buffer_dtype = buffer_dtype;
  precision.keep_low_precision_grads = absl::GetFlag(FLAGS_keep_low_precision_grads);
  return precision;
}

// The options of both interfaces: MakeShardedModel translates them for FSDP2.
absl::StatusOr<FsdpOptions> ReadFsdpOptions() {
  FsdpOptions fsdp;
  FSDP_ASSIGN_OR_RETURN(fsdp.sharding_strategy, ParseShardingStrategy(absl::GetFlag(FLAGS_sharding_strategy)));
  if (absl::GetFlag(FLAGS_shard_group_size) > 0) fsdp.shard_group_size = absl::GetFlag(FLAGS_shard_group_size);
  FSDP_ASSIGN_OR_RETURN(fsdp.auto_wrap_policy, ParseWrap(absl::GetFlag(FLAGS_wrap)));
  FSDP_ASSIGN_OR_RETURN(fsdp.mixed_precision, ReadPrecision());
  fsdp.use_orig_params = absl::GetFlag(FLAGS_use_orig_params);
  fsdp.cpu_offload.offload_params = absl::GetFlag(FLAGS_cpu_offload);
  fsdp.activation_checkpointing = absl::GetFlag(FLAGS_activation_checkpointing);
  fsdp.init_seed = absl::GetFlag(FLAGS_seed);
  FSDP_RETURN_IF_ERROR(
      CheckChoice("backward_prefetch", absl::GetFlag(FLAGS_backward_prefetch), {"pre", "post", "none"}));
  FSDP_ASSIGN_OR_RETURN(fsdp.backward_prefetch, ParseBackwardPrefetch(absl::GetFlag(FLAGS_backward_prefetch)));
  fsdp.forward_prefetch = absl::GetFlag(FLAGS_forward_prefetch);
  fsdp.limit_all_gathers = absl::GetFlag(FLAGS_limit_all_gathers);
  fsdp.optimizer_casts = absl::GetFlag(FLAGS_optimizer_casts);
  return fsdp;
}

absl::Status ReadSharding(TrainOptions& options) {
  options.api = absl::GetFlag(FLAGS_api) == "fsdp2" ? TrainApi::kFsdp2 : TrainApi::kFsdp1;
  FSDP_ASSIGN_OR_RETURN(options.fsdp, ReadFsdpOptions());
  options.wrap = absl::GetFlag(FLAGS_wrap);
  if (const std::optional<std::string> output_dtype = absl::GetFlag(FLAGS_output_dtype); output_dtype.has_value()) {
    FSDP_ASSIGN_OR_RETURN(options.output_dtype, ParseDType(*output_dtype));
  }
  if (ScalesGradients()) options.grad_scaler = ReadGradScaler();
  options.pin_memory = absl::GetFlag(FLAGS_pin_memory);
  options.cuda_graph = absl::GetFlag(FLAGS_cuda_graph);
  return absl::OkStatus();
}

absl::Status ReadCheckpointing(TrainOptions& options) {
  FSDP_ASSIGN_OR_RETURN(options.state_dict_type, ParseStateDictType(absl::GetFlag(FLAGS_state_dict_type)));
  FSDP_ASSIGN_OR_RETURN(options.resume, ParseResume(absl::GetFlag(FLAGS_resume)));
  options.checkpoint_dir = absl::GetFlag(FLAGS_checkpoint_dir);
  options.checkpoint_every = absl::GetFlag(FLAGS_checkpoint_every);
  options.keep_last = absl::GetFlag(FLAGS_keep_last);
  options.keep_every = absl::GetFlag(FLAGS_keep_every);
  options.rank0_only = absl::GetFlag(FLAGS_rank0_only);
  options.offload_to_cpu = absl::GetFlag(FLAGS_offload_to_cpu);
  options.async_checkpoint = absl::GetFlag(FLAGS_async_checkpoint);
  options.incremental = absl::GetFlag(FLAGS_incremental);
  options.parity = absl::GetFlag(FLAGS_parity);
  FSDP_ASSIGN_OR_RETURN(options.allow, ParseAllowed(absl::GetFlag(FLAGS_allow), options.model));
  options.overwrite = absl::GetFlag(FLAGS_overwrite);
  options.upload = absl::GetFlag(FLAGS_upload);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainOptions> TrainOptionsFromFlags() {
  FSDP_RETURN_IF_ERROR(CheckChoices());
  FSDP_RETURN_IF_ERROR(CheckNumbers());
  FSDP_RETURN_IF_ERROR(CheckJob());
  FSDP_RETURN_IF_ERROR(CheckFreeze());
  FSDP_RETURN_IF_ERROR(CheckCombinations());
  TrainOptions options;
  options.nproc = absl::GetFlag(FLAGS_nproc);
  options.device = {.device = ParseDevice(absl::GetFlag(FLAGS_device)), .share_gpu = absl::GetFlag(FLAGS_share_gpu)};
  if (absl::GetFlag(FLAGS_backend) != "auto") options.backend = absl::GetFlag(FLAGS_backend);
  options.run_id = absl::GetFlag(FLAGS_run_id);
  options.join_timeout = absl::GetFlag(FLAGS_join_timeout);
  options.grace = absl::GetFlag(FLAGS_grace);
  options.model = absl::GetFlag(FLAGS_model);
  options.config = absl::GetFlag(FLAGS_config).value_or(options.model + "-tiny");
  options.init_from = absl::GetFlag(FLAGS_init_from);
  options.flat_layout = absl::GetFlag(FLAGS_flat_layout);
  options.freeze = absl::GetFlag(FLAGS_freeze);
  options.data = absl::GetFlag(FLAGS_data);
  options.tokens = absl::GetFlag(FLAGS_tokens);
  ReadSteps(options);
  FSDP_RETURN_IF_ERROR(ReadSharding(options));
  FSDP_RETURN_IF_ERROR(ReadCheckpointing(options));
  options.metrics = absl::GetFlag(FLAGS_metrics);
  options.export_to = absl::GetFlag(FLAGS_export);
  options.export_format = absl::GetFlag(FLAGS_export_format);
  options.trace = absl::GetFlag(FLAGS_trace);
  options.print_schedule = absl::GetFlag(FLAGS_print_schedule);
  return options;
}

}  // namespace fsdp
