// SPDX-License-Identifier: Apache-2.0
//
// A run, in the order of its collective calls. Every rank makes the same ones:
//
//   1. OpenData    the flags, then config and tokens; each rank checks its own part of the tokens, and AllReduceStatus
//                  makes one rank's error every rank's, so that no rank waits in a collective for one that has
//                  returned. Rank 0 makes sure that no output would harm an input (run_outputs.h), and all ranks that
//                  they are one run (run_attributes.h).
//   2. BuildModel  the sharded model, the optimizer over the parameters that are trained, the step.
//   3. FillModel   the start of the run (run_start.h), then the weights: of a checkpoint, of --init_from, or random.
//                  The ranks compare what they have opened before they read it.
//   4. OpenLog     metrics, events and trace (run_log.h), so that a path that cannot be written is found before
//                  hours of training.
//   5. Train       steps; after each that is due, a checkpoint; at the end the trace and the export;
//                  last, only on rank 0, the wait for uploads.
//
// A rank that fails outside of AllReduceStatus aborts the group, which ends the others' waits with its error.
#include "fsdp/train/trainer.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/shared_root.h"
#include "fsdp/checkpoint/object/open_store.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/collectives/group/same_on_ranks.h"
#include "fsdp/collectives/group_hosts.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/train/checkpoint_dir.h"
#include "fsdp/train/frozen_parameters.h"
#include "fsdp/train/initial_weights.h"
#include "fsdp/train/model_export.h"
#include "fsdp/train/run_attributes.h"
#include "fsdp/train/run_optimizers.h"
#include "fsdp/train/run_outputs.h"
#include "fsdp/train/say.h"
#include "fsdp/train/sharded_language_model.h"
#include "fsdp/train/stop_signal.h"
#include "fsdp/train/token_data.h"

namespace fsdp {
namespace {

absl::StatusOr<TokenData> ReadData(const TrainOptions& options) {
  if (!options.tokens.empty()) return TokenData::FromTokenFile(options.tokens);
  if (!options.data.empty()) return TokenData::FromTextFiles(options.data);
  // The schedule does not depend on the tokens.
  if (options.print_schedule) return TokenData::Zeros(options.seq_len + 1);
  absl::StatusOr<std::string> sources = FindRunfile("train/sources.txt");
  if (sources.ok()) return TokenData::FromTextFiles(*sources);
  return absl::NotFoundError(
      absl::StrFormat("neither --data nor --tokens is given, and the default, this repository's "
                      "own sources, is not there: %s",
                      sources.status().message()));
}

// The ranks divide the check of the vocabulary among themselves: each checks one chunk of the tokens.
absl::StatusOr<TokenData> CheckedData(const TrainOptions& options, const CausalLmConfig& config,
                                      const ProcessGroup& group) {
  FSDP_ASSIGN_OR_RETURN(TokenData data, ReadData(options));
  FSDP_RETURN_IF_ERROR(data.CheckLength(options.seq_len));
  FSDP_RETURN_IF_ERROR(data.CheckVocabulary(VocabSize(config), ChunkOf(data.size(), group.size(), group.rank())));
  return data;
}

absl::StatusOr<CausalLmConfig> CheckedConfig(const TrainOptions& options, std::vector<std::string>* notes) {
  FSDP_ASSIGN_OR_RETURN(const CausalLmConfig config, ReadModelConfig(options, notes));
  const std::optional<SequenceLimit> limit = SequenceLimitOf(config);
  if (!limit.has_value() || options.seq_len <= limit->seq_len) return config;
  return absl::InvalidArgumentError(absl::StrFormat("--seq_len=%d: expected at most the %s of --config=%s, %d",
                                                    options.seq_len, limit->field, options.config, limit->seq_len));
}

// Threads of a load to a GPU: the cores of this host divided evenly among its ranks. Collective.
absl::StatusOr<int> LoadThreads(ProcessGroup& group) {
  FSDP_ASSIGN_OR_RETURN(const GroupHosts hosts, FindHosts(group));
  const auto ranks = static_cast<int>(hosts.layout.ranks_on(hosts.layout.host_of(group.rank())).size());
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / ranks, 1, 16);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainOptions& options,
                                                         std::shared_ptr<ProcessGroup> group) {
  // First, since flags decide which of the following calls this rank makes.
  FSDP_RETURN_IF_ERROR(CheckSameOnRanks(*group, options.agreed_flags, "start all ranks with the same flags"));
  TrainOptions cut = options;
  if (options.global_batch > 0) {
    FSDP_ASSIGN_OR_RETURN(cut.grad_accum, MicroStepsOf(options.global_batch, options.batch_size, group->size()));
  }
  // From here on grad_accum is fixed, whichever of the two flags was given.
  std::unique_ptr<Trainer> trainer(new Trainer(cut, std::move(group)));
  const absl::Status built = trainer->Build();
  if (built.ok()) return trainer;
  trainer->group_->Abort(built);  // before the trainer's streams wait for peers that wait for this rank
  return built;
}

absl::Status Trainer::Build() {
  FSDP_RETURN_IF_ERROR(OpenData());
  FSDP_RETURN_IF_ERROR(BuildModel());
  FSDP_RETURN_IF_ERROR(FillModel());
  return AllReduceStatus(*group_, OpenLog());
}

absl::Status Trainer::OpenData() {
  std::vector<std::string> notes;
  absl::StatusOr<CausalLmConfig> config = CheckedConfig(options_, &notes);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(*group_, config.status()));
  config_ = *std::move(config);
  // After the config, whose vocabulary bounds the tokens.
  absl::StatusOr<TokenData> data = CheckedData(options_, config_, *group_);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(*group_, data.status()));
  FSDP_RETURN_IF_ERROR(AllReduceStatus(
      *group_, is_rank0() && !options_.print_schedule ? CheckRunOutputs(options_, *data) : absl::OkStatus()));
  run_ = RunAttributes(options_, config_, DataAttributes(options_, *data), *group_);
  FSDP_RETURN_IF_ERROR(AgreeOnAttributes(run_, *group_));
  batches_ = std::make_unique<BatchLoader>(*std::move(data), BatchShape{.batch_size = options_.batch_size,
                                                                        .seq_len = options_.seq_len,
                                                                        .grad_accum = options_.grad_accum,
                                                                        .rank = group_->rank(),
                                                                        .world_size = group_->size()});
  if (!is_rank0() || options_.print_schedule) return absl::OkStatus();
  for (const std::string& note : notes) Say("%s", note);
  return absl::OkStatus();
}

absl::Status Trainer::BuildModel() {
  trace_ = RunLog::MakeTrace(options_, *group_);
  FSDP_ASSIGN_OR_RETURN(model_, MakeShardedModel(config_, options_, group_, trace_));
  FSDP_ASSIGN_OR_RETURN(optimizers_, MakeOptimizers(options_, *model_));
  if (options_.grad_scaler.has_value()) scaler_ = std::make_unique<ShardedGradScaler>(*group_, *options_.grad_scaler);
  absl::StatusOr<std::unique_ptr<TrainStep>> step =
      options_.cuda_graph ? TrainStep::CreateCaptured(*model_, *optimizers_.front(), *batches_, scaler_.get())
                          : TrainStep::Create(*model_, PointersTo(optimizers_), *batches_, trace_, scaler_.get());
  if (options_.cuda_graph && !step.ok()) {
    return Annotate(step.status(), "--cuda_graph");
  }
  FSDP_ASSIGN_OR_RETURN(train_step_, std::move(step));
  if (options_.loss_chunks > 0) train_step_->LetModelComputeLoss();
  return absl::OkStatus();
}

absl::Status Trainer::FillModel() {
  // Without weights: the schedule depends only on the model's structure.
  if (options_.print_schedule) return absl::OkStatus();
  LoadOptions load_options;
  load_options.device = &model_->device();
  if (model_->device().type() != DeviceType::kCpu) {
    FSDP_ASSIGN_OR_RETURN(load_options.io_threads, LoadThreads(*group_));
  }
  FSDP_ASSIGN_OR_RETURN(load_options.flat_layout, ModelLayout(options_.flat_layout, model_->module(), *group_));
  FSDP_ASSIGN_OR_RETURN(start_, FindRunStart(options_, *load_options.flat_layout, *group_));
  FSDP_RETURN_IF_ERROR(CheckParity(options_, group_->size()));
  const bool reads_init_from = is_rank0() && !start_.resumed();
  FSDP_RETURN_IF_ERROR(
      AllReduceStatus(*group_, reads_init_from ? CheckReplacedSteps(options_, start_.superseded) : absl::OkStatus()));
  FSDP_RETURN_IF_ERROR(AllReduceStatus(*group_, is_rank0() ? MakeCheckpointDir(options_) : absl::OkStatus()));
  if (!options_.checkpoint_dir.empty() && group_->size() > 1) {
    FSDP_RETURN_IF_ERROR(CheckSharedRoot(PosixFileSystem(), options_.checkpoint_dir, *group_));
  }
  // An incremental save hard-links files of the checkpoint before it, so that one must be in the same directory.
  const std::string last = IsInDirectory(options_.checkpoint_dir, start_.checkpoint) ? start_.checkpoint : "";
  saver_ = std::make_unique<CheckpointSaver>(options_, *model_, PointersTo(optimizers_),
                                             EarlierCheckpoints{start_.superseded, start_.damaged, last});
  saver_->set_attributes(RecordedAttributes(run_));
  saver_->set_grad_scaler(scaler_.get());
  // Before the restore, so that keys or an endpoint that are wrong are found without a long load.
  FSDP_RETURN_IF_ERROR(AllReduceStatus(*group_, is_rank0() ? StartUploads() : absl::OkStatus()));
  run_.saved = WithImpliedOptions(start_.saved);
  load_options.map = start_.resumed() ? MapOfResume(options_) : options_.map;
  const std::string& source = start_.resumed() ? start_.checkpoint : options_.init_from;
  if (start_.resumed()) {
    const auto load = [&](StateDict& wanted) {
      // Parameters that the saving run had frozen have no optimizer state in the checkpoint: theirs starts afresh.
      StateDict present = WithoutOptimState(wanted, start_.frozen);
      return LoadCheckpoint(source, present, *group_, load_options);
    };
    FSDP_ASSIGN_OR_RETURN(const bool continues, ContinuesOptimizer(options_, run_.saved, source));
    const std::vector<Optimizer*> continued = continues ? PointersTo(optimizers_) : std::vector<Optimizer*>();
    FSDP_RETURN_IF_ERROR(RestoreFrom(source, continued, load));
    if (is_rank0() && !continues) Say("the optimizer begins anew: its state is not taken from %s", source);
    FSDP_RETURN_IF_ERROR(AllReduceStatus(*group_, RestoreScaler()));
  } else if (!source.empty()) {
    const auto load = [&](StateDict& wanted) {
      return LoadInitialWeights(source, BasePrefix(config_), wanted, *group_, load_options, &start_.notes);
    };
    run_.listed = ModelAttributes(run_.listed);  // only the model is loaded
    FSDP_RETURN_IF_ERROR(RestoreFrom(source, /*optimizers=*/{}, load));
  }
  if (is_rank0()) SayStart(source);
  return absl::OkStatus();
}

// The checkpoint's scale and rule replace --init_scale and --growth_interval, as in PyTorch's load_state_dict.
absl::Status Trainer::RestoreScaler() {
  if (scaler_ == nullptr || start_.grad_scaler.empty()) return absl::OkStatus();
  StateDict state;
  state.Set(GradScalerKey(), start_.grad_scaler);
  return Annotate(scaler_->LoadStateDict(state), start_.checkpoint);
}

absl::Status Trainer::StartUploads() {
  if (options_.upload.empty()) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const S3Url url, ParseS3Url(options_.upload));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ObjectStore> store, OpenObjectStore(url));
  BackgroundUploader::Options uploads;
  uploads.overwrite = options_.overwrite;
  // In one call, since other threads print at the same time.
  uploads.say = [](const std::string& sentence) {
    Print("%s\n", sentence);
    std::fflush(stdout);
  };
  auto uploader = std::make_unique<BackgroundUploader>(std::move(store), url.prefix, std::move(uploads));
  // The run that saved it may have ended before its upload was complete.
  if (IsInDirectory(options_.checkpoint_dir, start_.checkpoint)) uploader->Add(start_.checkpoint);
  saver_->set_uploader(std::move(uploader));
  return absl::OkStatus();
}

// Errors of the load name files of `source`; errors of the comparison with the model do not, and get its name here.
absl::Status Trainer::RestoreFrom(const std::string& source, absl::Span<Optimizer* const> optimizers,
                                  const std::function<absl::Status(StateDict& wanted)>& load) {
  absl::Status loaded;
  const auto noted_load = [&](StateDict& wanted) { return loaded = load(wanted); };
  absl::StatusOr<std::vector<AttributeDifference>> differences = model_->Restore(optimizers, noted_load, run_);
  if (loaded.ok() && absl::IsFailedPrecondition(differences.status())) return Annotate(differences.status(), source);
  FSDP_ASSIGN_OR_RETURN(differences_, std::move(differences));
  return absl::OkStatus();
}

void Trainer::SayStart(const std::string& source) const {
  for (const std::string& note : start_.notes)
    Say("%s", absl::StrReplaceAll(note, {{"DescribeOptions::map", "--map"}}));
  for (const std::string& sentence : DescribeDifferences(source, run_, differences_)) Say("%s", sentence);
  if (start_.resumed())
    Say("resuming from %s: %d of %d steps are done", source, start_.step, options_.learning_rate.steps);
  if (scaler_ != nullptr && start_.resumed() && start_.grad_scaler.empty()) {
    Say("%s has no state of a gradient scaler: losses are scaled by %g", source, scaler_->scale());
  }
  if (scaler_ == nullptr && !start_.grad_scaler.empty()) {
    Say("the gradient scaler of %s is not used: --grad_scaler is off", source);
  }
  if (start_.resumed() && !options_.init_from.empty()) {
    Say("--init_from=%s is not read: the checkpoint wins", options_.init_from);
  }
  if (!start_.resumed())
    Say("starting at step 0 with %s", source.empty() ? "random weights" : "the weights of " + source);
  const std::vector<std::string> frozen = FrozenNames(model_->parameters());
  if (!frozen.empty()) Say("frozen: %d of %d parameters", frozen.size(), model_->parameters().size());
  if (!start_.resumed()) return;
  for (const std::string& change : DescribeFrozenChange(start_.frozen, frozen)) Say("%s", change);
}

absl::Status Trainer::OpenLog() {
  if (options_.print_schedule) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(log_, RunLog::Open(options_, start_, *group_, trace_));
  return absl::OkStatus();
}

absl::Status Trainer::Train() {
  const GracefulStop graceful(options_.grace);  // until saves, export and uploads are done
  FSDP_RETURN_IF_ERROR(TrainAndExport());
  return saver_->FinishUploads();
}

// Shows users of several hosts that the job has found them, and the cost of their placement of ranks.
absl::Status Trainer::SayHosts() const {
  FSDP_ASSIGN_OR_RETURN(const GroupHosts hosts, FindHosts(*group_));
  if (!is_rank0() || hosts.layout.hosts() == 1) return absl::OkStatus();
  const bool flat = !hosts.layout.is_regular() && group_->backend() == "net";
  Say("%s%s", hosts.ToString(),
      flat ? "; collectives between all ranks are flat, as if each had a host of its own" : "");
  return absl::OkStatus();
}

// On a GPU attention may be cuDNN's, which affects speed and the last bits.
absl::Status Trainer::SayAttention() const {
  const DeviceType device = model_->device().type();
  if (!is_rank0() || device == DeviceType::kCpu) return absl::OkStatus();
  CausalLmConfig config = config_;
  SetAttention(options_.AttentionOn(device), config);
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const LayerOps> ops, LayerOpsFor(model_->device()));
  Say("attention: %s",
      ops->AttentionKernels(AttentionSizes(config, options_.batch_size, options_.seq_len), options_.compute_dtype()));
  return absl::OkStatus();
}

absl::Status Trainer::TrainAndExport() {
  const int64_t steps = options_.learning_rate.steps;
  FSDP_RETURN_IF_ERROR(SayHosts());
  FSDP_RETURN_IF_ERROR(SayAttention());
  if (is_rank0() && start_.step < steps) {
    const BatchShape& shape = batches_->shape();
    Say("training with %s, %s a step in %s, %d tokens a step, steps %d to %d", Counted(shape.world_size, "rank"),
        Counted(shape.tokens_per_step() / shape.seq_len, "row"), Counted(shape.grad_accum, "micro-step"),
        shape.tokens_per_step(), start_.step, steps - 1);
  }
  step_began_ = SteadyNow();
  for (int64_t step = start_.step; step < steps; ++step) {
    FSDP_ASSIGN_OR_RETURN(const bool stop, TrainOneStep(step));
    // After the last step a stop needs no other end than the usual one.
    if (!stop || step + 1 == steps) continue;
    if (is_rank0()) {
      Say("stopped by a signal after step %d of %d%s", step, steps,
          options_.checkpoint_dir.empty() ? "; nothing is saved without --checkpoint_dir" : "");
    }
    FSDP_RETURN_IF_ERROR(saver_->Finish());
    return FinishTrace();
  }
  FSDP_RETURN_IF_ERROR(saver_->Finish());
  FSDP_RETURN_IF_ERROR(FinishTrace());
  if (options_.export_to.empty()) return absl::OkStatus();
  const std::optional<FormatTarget> target = FindTarget(options_.export_format);
  if (!target) {
    return absl::InvalidArgumentError(
        absl::StrFormat("export format \"%s\", expected %s", options_.export_format, TargetNames()));
  }
  FSDP_RETURN_IF_ERROR(ExportModel(options_.export_to, config_, *model_, *target));
  if (is_rank0()) Say("exported %s", options_.export_to);
  return absl::OkStatus();
}

// Spans are complete once their streams have run. The model's stream is waited for even without a trace, so that the
// run is known to have ended without an error.
absl::Status Trainer::FinishTrace() {
  FSDP_RETURN_IF_ERROR(model_->stream().Synchronize());
  return log_->FinishTrace();
}

absl::StatusOr<StepOutcome> Trainer::RunStep(int64_t step) {
  const StepUnderWay under_way;
  return train_step_->Run(step, options_.clip_limit());
}

// All ranks agree on saving, since IsDue depends only on the step and the request to stop is the same on all of them.
absl::StatusOr<bool> Trainer::TrainOneStep(int64_t step) {
  const double lr = LearningRate(options_.learning_rate, step);
  for (const auto& optimizer : optimizers_) FSDP_RETURN_IF_ERROR(optimizer->SetHyperparameter("lr", lr));
  FSDP_ASSIGN_OR_RETURN(const StepOutcome outcome, RunStep(step));
  const absl::Time now = SteadyNow();
  const double seconds = absl::ToDoubleSeconds(now - step_began_);
  step_began_ = now;
  const int64_t tokens = batches_->shape().tokens_per_step();
  const bool saves = saver_->IsDue(step + 1) || (outcome.stop_requested && !options_.checkpoint_dir.empty());
  // Before the save, so that a run that is killed in it has reported its step.
  FSDP_RETURN_IF_ERROR(log_->AddStep({.step = step,
                                      .loss = outcome.loss,
                                      .grad_norm = outcome.grad_norm,
                                      .lr = lr,
                                      .tokens_per_second = static_cast<double>(tokens) / seconds,
                                      .step_seconds = seconds,
                                      .peak_bytes = outcome.peak_bytes,
                                      .scale = outcome.scale,
                                      .save = saves}));
  if (saves) {
    const int64_t tokens_seen = start_.tokens_seen + (step + 1 - start_.step) * tokens;
    FSDP_ASSIGN_OR_RETURN(const std::string saved, saver_->Save(step + 1, tokens_seen));
    // The next forward may start while the state is copied; only the update must wait.
    train_step_->UpdateAfter(saver_->copied());
    if (is_rank0()) Say("%s", saved);
    FSDP_RETURN_IF_ERROR(log_->AddSave(step, saved, absl::ToDoubleSeconds(SteadyNow() - now)));
    step_began_ = SteadyNow();  // steps are timed without their checkpoints
  }
  return outcome.stop_requested;
}

absl::Status Trainer::PrintSchedule() {
  // The first step records the order of the units; the schedule is known after it.
  FSDP_RETURN_IF_ERROR(train_step_->Run(0, options_.clip_limit()).status());
  FSDP_RETURN_IF_ERROR(model_->stream().Synchronize());
  if (is_rank0()) Print("%s", RenderSchedule(model_->StepSchedule(options_.grad_accum), model_->UnitNames()));
  return absl::OkStatus();
}

}  // namespace fsdp
