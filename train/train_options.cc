// SPDX-License-Identifier: Apache-2.0
//
// Flags are checked (train_flag_checks.h) before they are used; parsing checks the few that must be parsed.
#include "fsdp/train/train_options.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/train/agreed_flags.h"
#include "fsdp/train/run_attributes.h"
#include "fsdp/train/train_dtypes.h"
#include "fsdp/train/train_flag_checks.h"
#include "fsdp/train/train_flags.h"

namespace fsdp {
namespace {

// block, none or size:N, as the policy that AutoWrap takes. A default WrapPolicy makes the whole model one unit.
absl::StatusOr<WrapPolicy> ParseWrap(const std::string& value) {
  if (value == "block") return LambdaWrapPolicy(IsTransformerBlock);
  if (value == "none") return WrapPolicy();
  int64_t min_num_params = 0;
  if (absl::StartsWith(value, "size:") && absl::SimpleAtoi(value.substr(5), &min_num_params) && min_num_params > 0) {
    return SizeBasedWrapPolicy(min_num_params);
  }
  return BadFlagValue("wrap", value, "block, size:N with N > 0, or none");
}

// Every value other than the two words is a path, which is opened when the run starts.
absl::StatusOr<ResumeChoice> ParseResume(const std::string& value) {
  if (value == "auto") return ResumeChoice{ResumeChoice::Kind::kAuto, ""};
  if (value == "none") return ResumeChoice{ResumeChoice::Kind::kNone, ""};
  if (!value.empty()) return ResumeChoice{ResumeChoice::Kind::kPath, value};
  return BadFlagValue("resume", value, "auto, none or a checkpoint's path");
}

// `name` is one of the choices that CheckChoices allows.
DeviceChoice ParseDevice(std::string_view name) {
  if (name == "cuda") return DeviceChoice::kCuda;
  return name == "cpu" ? DeviceChoice::kCpu : DeviceChoice::kAuto;
}

// `name` is one of the choices that CheckChoices allows; empty for auto.
std::optional<AttentionKind> ParseAttention(std::string_view name) {
  if (name == "auto") return std::nullopt;
  return name == "eager" ? AttentionKind::kEager : AttentionKind::kOnline;
}

constexpr std::pair<OptimizerKind, std::string_view> kOptimizers[] = {
    {OptimizerKind::kAdamW, "adamw"}, {OptimizerKind::kAdam, "adam"},           {OptimizerKind::kSgd, "sgd"},
    {OptimizerKind::kLion, "lion"},   {OptimizerKind::kAdafactor, "adafactor"}, {OptimizerKind::kMuon, "muon"}};

// `name` is one of the choices that CheckChoices allows.
OptimizerKind ParseOptimizer(std::string_view name) {
  for (const auto& [kind, known] : kOptimizers) {
    if (known == name) return kind;
  }
  return OptimizerKind::kAdamW;
}

// Without --lr_schedule the schedule is a cosine that ends at min_lr, which defaults to lr.
LearningRateOptions ReadLearningRate() {
  const std::string schedule = absl::GetFlag(FLAGS_lr_schedule);
  LearningRateOptions options = {.lr = absl::GetFlag(FLAGS_lr),
                                 .warmup_steps = absl::GetFlag(FLAGS_warmup_steps),
                                 .steps = absl::GetFlag(FLAGS_steps),
                                 .decay_steps = absl::GetFlag(FLAGS_lr_decay_steps),
                                 .is_named = schedule != "auto"};
  if (options.is_named) options.schedule = LrScheduleOf(schedule);
  const bool ends_at_0 = options.is_named && options.schedule != LrSchedule::kConstant;
  options.min_lr = absl::GetFlag(FLAGS_min_lr).value_or(ends_at_0 ? 0 : options.lr);
  return options;
}

void ReadSteps(TrainOptions& options) {
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.seq_len = absl::GetFlag(FLAGS_seq_len);
  options.grad_accum = absl::GetFlag(FLAGS_grad_accum);
  options.global_batch = absl::GetFlag(FLAGS_global_batch);
  options.learning_rate = ReadLearningRate();
  options.adamw = {.lr = options.learning_rate.lr,
                   .beta1 = absl::GetFlag(FLAGS_beta1),
                   .beta2 = absl::GetFlag(FLAGS_beta2),
                   .eps = absl::GetFlag(FLAGS_eps),
                   .weight_decay = absl::GetFlag(FLAGS_weight_decay),
                   .amsgrad = absl::GetFlag(FLAGS_amsgrad)};
  options.optimizer = ParseOptimizer(absl::GetFlag(FLAGS_optimizer));
  options.adamw.decoupled_weight_decay = options.optimizer != OptimizerKind::kAdam;
  options.momentum = absl::GetFlag(FLAGS_momentum).value_or(options.optimizer == OptimizerKind::kMuon ? 0.95 : 0);
  options.max_grad_norm = absl::GetFlag(FLAGS_max_grad_norm);
}

absl::StatusOr<MixedPrecision> ReadPrecision() {
  MixedPrecision precision;
  const std::string dtype_name = absl::GetFlag(FLAGS_dtype);
  FSDP_ASSIGN_OR_RETURN(const DType dtype, ParseDType(dtype_name));
  FSDP_ASSIGN_OR_RETURN(const DType param_dtype, ParseDType(absl::GetFlag(FLAGS_param_dtype).value_or(dtype_name)));
  FSDP_ASSIGN_OR_RETURN(const DType reduce_dtype, ParseDType(absl::GetFlag(FLAGS_reduce_dtype)));
  FSDP_ASSIGN_OR_RETURN(const DType buffer_dtype, ParseDType(absl::GetFlag(FLAGS_buffer_dtype)));
  // The two dtypes are set together or not at all: an unset reduce_dtype would follow param_dtype, and the flag's
  // default is float32.
  if (param_dtype != dtype || reduce_dtype != dtype) {
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
  FSDP_ASSIGN_OR_RETURN(fsdp.backward_prefetch, ParseBackwardPrefetch(absl::GetFlag(FLAGS_backward_prefetch)));
  fsdp.forward_prefetch = absl::GetFlag(FLAGS_forward_prefetch);
  fsdp.limit_all_gathers = absl::GetFlag(FLAGS_limit_all_gathers);
  fsdp.symm_mem_for_comm = absl::GetFlag(FLAGS_symm_mem_for_comm);
  fsdp.copy_engine_all_gather = absl::GetFlag(FLAGS_copy_engine_all_gather);
  // Unset means that the device decides, so the flag's default must not set it to true.
  if (!absl::GetFlag(FLAGS_optimizer_casts)) fsdp.optimizer_casts = false;
  return fsdp;
}

absl::Status ReadSharding(TrainOptions& options) {
  options.api = absl::GetFlag(FLAGS_api) == "fsdp2" ? TrainApi::kFsdp2 : TrainApi::kFsdp1;
  FSDP_ASSIGN_OR_RETURN(options.dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  options.bf16_stochastic_round = absl::GetFlag(FLAGS_bf16_stochastic_round);
  FSDP_ASSIGN_OR_RETURN(options.fsdp, ReadFsdpOptions());
  options.wrap = absl::GetFlag(FLAGS_wrap);
  if (const std::optional<std::string> output_dtype = absl::GetFlag(FLAGS_output_dtype); output_dtype.has_value()) {
    FSDP_ASSIGN_OR_RETURN(options.output_dtype, ParseDType(*output_dtype));
  }
  options.attention = ParseAttention(absl::GetFlag(FLAGS_attention));
  options.own_attention = absl::GetFlag(FLAGS_attention) == "own";
  options.loss_chunks = absl::GetFlag(FLAGS_loss_chunks);
  // Unset without scaling: the trainer then makes no scaler.
  if (ScalesGradients()) options.grad_scaler = GradScalerFromFlags();
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
  // After options.model: the names depend on the kind of model.
  FSDP_ASSIGN_OR_RETURN(options.allow, ParseAllowed(absl::GetFlag(FLAGS_allow), options.model));
  options.overwrite = absl::GetFlag(FLAGS_overwrite);
  options.upload = absl::GetFlag(FLAGS_upload);
  return absl::OkStatus();
}

}  // namespace

std::string_view OptimizerKindName(OptimizerKind kind) {
  for (const auto& [known, name] : kOptimizers) {
    if (known == kind) return name;
  }
  return "unknown";
}

AttentionKind TrainOptions::AttentionOn(DeviceType device) const {
  if (attention.has_value()) return *attention;
  return compute_dtype() != DType::kFloat32 && device != DeviceType::kCpu ? AttentionKind::kOnline
                                                                          : AttentionKind::kEager;
}

absl::StatusOr<TrainOptions> TrainOptionsFromFlags() {
  NameTrainDTypes();
  FSDP_RETURN_IF_ERROR(CheckTrainFlags());
  TrainOptions options;
  options.nproc = absl::GetFlag(FLAGS_nproc);
  options.device = {.device = ParseDevice(absl::GetFlag(FLAGS_device)), .share_gpu = absl::GetFlag(FLAGS_share_gpu)};
  if (absl::GetFlag(FLAGS_backend) != "auto") options.backend = absl::GetFlag(FLAGS_backend);
  options.run_id = absl::GetFlag(FLAGS_run_id);
  options.join_timeout = absl::GetFlag(FLAGS_join_timeout);
  options.grace = absl::GetFlag(FLAGS_grace);
  options.model = absl::GetFlag(FLAGS_model);
  // The default preset depends on the kind of model.
  options.config = absl::GetFlag(FLAGS_config).value_or(options.model + "-tiny");
  options.init_from = absl::GetFlag(FLAGS_init_from);
  options.flat_layout = absl::GetFlag(FLAGS_flat_layout);
  FSDP_ASSIGN_OR_RETURN(options.map, RolesOfMapFlag(absl::GetFlag(FLAGS_map).values));
  options.freeze = absl::GetFlag(FLAGS_freeze);
  options.data = absl::GetFlag(FLAGS_data);
  options.tokens = absl::GetFlag(FLAGS_tokens);
  ReadSteps(options);
  FSDP_RETURN_IF_ERROR(ReadSharding(options));
  FSDP_RETURN_IF_ERROR(ReadCheckpointing(options));
  options.metrics = absl::GetFlag(FLAGS_metrics);
  options.tensorboard = absl::GetFlag(FLAGS_tensorboard);
  options.export_to = absl::GetFlag(FLAGS_export);
  options.export_format = absl::GetFlag(FLAGS_export_format);
  options.trace = absl::GetFlag(FLAGS_trace);
  options.print_schedule = absl::GetFlag(FLAGS_print_schedule);
  options.agreed_flags = AgreedFlags();
  return options;
}

}  // namespace fsdp
