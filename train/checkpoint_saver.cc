// SPDX-License-Identifier: Apache-2.0
//
// The steps of a save, in order; steps 1 to 3 and 5 are collective:
//
//   1. SetAsideDamaged  steps that did not verify when the run started give up the names that this run will use. Only
//                       now, because a run that ends before its first save should change nothing.
//   2. GatherState      the form that the options select, with the run's position as texts, and its attributes.
//   3. SaveCheckpoint, or AsyncSaver, which copies the state and writes it in a thread.
//   4. uploader_        gets the new step (with --upload, on rank 0), and uploads it in its own thread.
//      DeleteOld        once the new step is durable: the steps that this run replaces, then those beyond --keep_last.
//                       In this order a good checkpoint exists at every instant.
//   5. AllReduceStatus          an error of the deletion on rank 0 is returned on every rank.
//
// In the background step 4 runs on the saver's thread of rank 0 (`committed`), the only user of superseded_ from the
// first asynchronous save on; has_damaged_ is atomic because the main thread writes it.
#include "fsdp/train/checkpoint_saver.h"

#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/save/staged_checkpoint.h"
#include "fsdp/checkpoint/native/set_aside.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/train/frozen_parameters.h"
#include "fsdp/train/lr_scheduler_state.h"

namespace fsdp {
namespace {

// The form in which the state is taken from the model. A FULL checkpoint is gathered on rank 0 only with --rank0_only;
// otherwise every rank writes its flat shards to their places in the one file, as it writes them to its own file for
// LOCAL, and nothing is gathered. FSDP2 has no flat shards: its ranks write their chunks. Files are written from host
// memory. AsyncSaver copies a GPU's memory to the host by itself, so offload_to_cpu is needed only without it, and with
// rank0_only, which gathers.
StateDictSettings SettingsOf(const TrainOptions& options, const Device& device) {
  const bool offload_to_cpu = options.offload_to_cpu ||
                              (device.type() != DeviceType::kCpu && (options.rank0_only || !options.async_checkpoint));
  const bool is_full = options.state_dict_type == StateDictType::kFull && !options.rank0_only;
  if (options.state_dict_type == StateDictType::kSharded || (is_full && options.api == TrainApi::kFsdp2)) {
    return {ShardedStateDictConfig{offload_to_cpu}, ShardedOptimStateDictConfig{offload_to_cpu}};
  }
  if (options.rank0_only) {
    return {FullStateDictConfig{offload_to_cpu, true}, FullOptimStateDictConfig{offload_to_cpu, true}};
  }
  return {LocalStateDictConfig{offload_to_cpu}, LocalOptimStateDictConfig{offload_to_cpu}};
}

}  // namespace

StateKey StepKey() { return StateKey::Extra("step"); }
StateKey TokensSeenKey() { return StateKey::Extra("tokens_seen"); }
StateKey LearningRateKey() { return StateKey::Extra("learning_rate"); }
StateKey LrSchedulerKey() { return StateKey::Extra("lr_scheduler"); }
StateKey DataPositionKey() { return StateKey::Extra("data_position"); }
StateKey RngKey() { return StateKey::Extra("rng"); }
StateKey FrozenKey() { return StateKey::Extra("frozen"); }
StateKey GradScalerKey() { return StateKey::Extra("grad_scaler"); }

std::string DescribeLearningRate(const LearningRateOptions& options) {
  return absl::StrFormat(R"({"lr": %.17g, "min_lr": %.17g, "warmup_steps": %d, "steps": %d})", options.lr,
                         options.min_lr, options.warmup_steps, options.steps);
}

CheckpointSaver::CheckpointSaver(const TrainOptions& options, FullyShardedDataParallel& model,
                                 std::vector<Optimizer*> optimizers, EarlierCheckpoints earlier)
    : options_(options),
      model_(model),
      optimizers_(std::move(optimizers)),
      superseded_(std::move(earlier.superseded)),
      damaged_(std::move(earlier.damaged)),
      has_damaged_(!damaged_.empty()),
      last_(std::move(earlier.last)) {}

bool CheckpointSaver::IsDue(int64_t steps_done) const {
  if (options_.checkpoint_dir.empty()) return false;
  if (steps_done == options_.learning_rate.steps) return true;
  return options_.checkpoint_every > 0 && steps_done % options_.checkpoint_every == 0;
}

bool CheckpointSaver::Streams() const { return options_.rank0_only && !options_.async_checkpoint; }

// Checked first: otherwise memory would run out between two of the many tensors that are gathered, in any thread and in
// an allocation that cannot return a status.
absl::Status CheckpointSaver::CheckRoomOnRank0() const {
  FSDP_ASSIGN_OR_RETURN(const StateDict described, model_.DescribeFullState(optimizers_));
  int64_t nbytes = 0;
  for (const auto& [key, value] : described.entries()) {
    if (const auto* tensor = std::get_if<ShardedTensor>(&value))
      nbytes += tensor->shape.numel() * SizeOf(tensor->dtype);
  }
  // The first save also allocates the arena for the saver's copy.
  const int copies = async_saver_ == nullptr ? 2 : 1;
  const absl::Status room = CreateHostDevice({.cache_freed = false})->Allocate(copies * nbytes).status();
  if (room.ok()) return room;
  return absl::ResourceExhaustedError(
      absl::StrCat("rank 0 has no room for the whole state of ", nbytes,
                   " bytes, of which --rank0_only with --async_checkpoint holds ",
                   copies == 2 ? "two copies" : "one more copy", " (", room.message(),
                   "); leave out --async_checkpoint, and rank 0 holds two units at a time, or leave out --rank0_only"));
}

absl::StatusOr<StateDict> CheckpointSaver::GatherState(int64_t steps_done, int64_t tokens_seen) {
  const StateDictTypeGuard guard(model_, SettingsOf(options_, model_.device()));
  StateDict state;
  if (Streams()) {
    FSDP_ASSIGN_OR_RETURN(state, model_.DescribeFullState(optimizers_));
  } else {
    if (options_.rank0_only) {
      FSDP_RETURN_IF_ERROR(
          AllReduceStatus(model_.group(), model_.group().rank() == 0 ? CheckRoomOnRank0() : absl::OkStatus()));
    }
    FSDP_ASSIGN_OR_RETURN(state, model_.GetStateDict());
    for (Optimizer* optimizer : optimizers_) FSDP_RETURN_IF_ERROR(model_.AddOptimStateDict(*optimizer, state));
  }
  if (options_.rank0_only && model_.group().rank() != 0) return state;  // empty: the rest is only for rank 0
  state.attributes = attributes_;
  state.Set(StepKey(), absl::StrCat(steps_done));
  state.Set(TokensSeenKey(), absl::StrCat(tokens_seen));
  state.Set(LearningRateKey(), DescribeLearningRate(options_.learning_rate));
  if (options_.learning_rate.is_named) {
    size_t groups = 0;
    for (const Optimizer* optimizer : optimizers_) groups += optimizer->ParamGroups().size();
    state.Set(LrSchedulerKey(), LrSchedulerState(options_.learning_rate, steps_done, groups));
  }
  const int64_t samples_per_step = options_.batch_size * options_.grad_accum * model_.group().size();
  state.Set(DataPositionKey(), absl::StrFormat(R"({"next_sample": %d, "samples_per_step": %d})",
                                               steps_done * samples_per_step, samples_per_step));
  state.Set(RngKey(), absl::StrFormat(R"({"seed": %d})", options_.fsdp.init_seed));
  if (scaler_ != nullptr) scaler_->AddStateDict(state);
  if (const std::vector<std::string> frozen = FrozenNames(model_.parameters()); !frozen.empty()) {
    state.Set(FrozenKey(), EncodeFrozen(frozen));
  }
  return state;
}

SaveOptions CheckpointSaver::OptionsOfSave() {
  SaveOptions save;
  save.overwrite = !superseded_.empty();  // a step of that number was found when the run started
  save.parity = options_.parity;
  save.type = options_.state_dict_type;
  if (options_.incremental) save.base = last_;
  save.note = [this](const std::string& sentence) { SayOnce(sentence); };
  return save;
}

absl::Status CheckpointSaver::SetAsideDamaged(int64_t step) {
  if (damaged_.empty()) return absl::OkStatus();
  ProcessGroup& group = model_.group();
  absl::StatusOr<std::vector<std::string>> remaining = std::vector<std::string>();
  if (group.rank() == 0) remaining = SetAsideOnRank0(step);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, remaining.status()));
  // All ranks must know the names: each checks for them before the next save.
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, group.AllGatherObject(absl::StrJoin(*remaining, "/")));
  damaged_ = absl::StrSplit(blobs[0], '/', absl::SkipEmpty());
  has_damaged_ = !damaged_.empty();
  return absl::OkStatus();
}

// Returns the names that remain. kNotFound: another process has removed or renamed the step. kUnavailable: a repair
// holds its lock; this is an error only if the step has the number that is to be saved now.
absl::StatusOr<std::vector<std::string>> CheckpointSaver::SetAsideOnRank0(int64_t step) {
  std::vector<std::string> remaining;
  for (const std::string& name : damaged_) {
    const absl::StatusOr<SetAsideStep> aside = SetAsideCheckpoint(PosixFileSystem(), options_.checkpoint_dir, name);
    if (absl::IsNotFound(aside.status())) continue;
    if (absl::IsUnavailable(aside.status()) && name != StepName(step)) {
      Print("%s did not verify and keeps its name for now: %s\n", name, aside.status().message());
      remaining.push_back(name);
      continue;
    }
    FSDP_RETURN_IF_ERROR(aside.status());
    Print("%s did not verify; it is kept as %s, %d bytes: ckpt repair may make it whole\n", name,
          JoinPath(options_.checkpoint_dir, aside->name), aside->nbytes);
  }
  std::fflush(stdout);
  return remaining;
}

absl::StatusOr<std::string> CheckpointSaver::Save(int64_t steps_done, int64_t tokens_seen) {
  FSDP_RETURN_IF_ERROR(SetAsideDamaged(steps_done));
  FSDP_ASSIGN_OR_RETURN(const StateDict state, GatherState(steps_done, tokens_seen));
  if (options_.async_checkpoint) return SaveInBackground(state, steps_done);
  SaveOptions save = OptionsOfSave();
  if (Streams()) {
    save.stream = [this](const FullStatePart& write) { return model_.StreamFullState(optimizers_, write); };
  }
  FSDP_ASSIGN_OR_RETURN(last_, SaveCheckpoint(state, options_.checkpoint_dir, steps_done, model_.group(), save));
  absl::Status deleted;
  // Before the deletion: the uploader locks a step during its upload, and retention postpones the deletion of such
  // steps.
  if (uploader_ != nullptr) uploader_->Add(last_);
  if (model_.group().rank() == 0) deleted = DeleteOld(last_);
  superseded_.clear();
  FSDP_RETURN_IF_ERROR(AllReduceStatus(model_.group(), deleted));
  return absl::StrCat("saved ", last_);
}

absl::StatusOr<std::string> CheckpointSaver::SaveInBackground(const StateDict& state, int64_t steps_done) {
  if (async_saver_ == nullptr) {
    AsyncSaverOptions options;
    const int io_threads = options.save.io_threads;
    options.save = OptionsOfSave();
    options.save.io_threads = io_threads;  // AsyncSaver's default, which leaves the cores to training
    options.incremental = options_.incremental;
    // From now on only this callback, on the saver's thread, uses superseded_.
    options.committed = [this](const std::string& path) {
      if (uploader_ != nullptr) uploader_->Add(path);
      const absl::Status deleted = DeleteOld(path);
      superseded_.clear();
      Print("saved %s\n", path);
      std::fflush(stdout);
      return deleted;
    };
    FSDP_ASSIGN_OR_RETURN(async_saver_, AsyncSaver::Create(options_.checkpoint_dir, model_.group(), options));
  }
  FSDP_ASSIGN_OR_RETURN(const AsyncSaveReport report, async_saver_->Save(state, steps_done, &model_.stream()));
  copied_ = report.copied;
  return absl::StrCat("saving step ", steps_done, " in the background; training waited ",
                      absl::FormatDuration(absl::Trunc(report.blocked, absl::Microseconds(1))),
                      report.note.empty() ? "" : ": ", report.note);
}

absl::Status CheckpointSaver::Finish() {
  return async_saver_ == nullptr ? absl::OkStatus() : async_saver_->Wait().status();
}

absl::Status CheckpointSaver::FinishUploads() { return uploader_ == nullptr ? absl::OkStatus() : uploader_->Finish(); }

absl::Status CheckpointSaver::DeleteOld(const std::string& saved) {
  for (const std::string& name : superseded_) {
    // SaveCheckpoint has replaced a step of the same name.
    if (name == std::filesystem::path(saved).filename()) continue;
    FSDP_RETURN_IF_ERROR(DeleteCheckpointDirectory(PosixFileSystem(), options_.checkpoint_dir, name));
  }
  // A damaged step under its name would count as one of the newest and push out a good one.
  if (options_.keep_last == 0 || has_damaged_) return absl::OkStatus();
  std::vector<std::string> left;
  FSDP_RETURN_IF_ERROR(PruneCheckpoints(options_.checkpoint_dir, options_.keep_last, options_.keep_every, &left));
  for (const std::string& sentence : left) SayOnce(sentence);
  return absl::OkStatus();
}

// A save or a deletion finds the same leftovers again the next time.
void CheckpointSaver::SayOnce(const std::string& sentence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!said_.insert(sentence).second) return;
  Print("checkpoint: %s\n", sentence);
  std::fflush(stdout);
}

}  // namespace fsdp
