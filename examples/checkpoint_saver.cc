// SPDX-License-Identifier: Apache-2.0
#include "examples/checkpoint_saver.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file_system.h"
#include "checkpoint/staged_checkpoint.h"

namespace fsdp {
namespace {

StateDictSettings SettingsOf(const TrainOptions& options) {
  if (options.state_dict_type == StateDictType::kFull) {
    return {FullStateDictConfig{options.offload_to_cpu, options.rank0_only},
            FullOptimStateDictConfig{options.offload_to_cpu, options.rank0_only}};
  }
  return {ShardedStateDictConfig{options.offload_to_cpu}, ShardedOptimStateDictConfig{options.offload_to_cpu}};
}

}  // namespace

StateKey StepKey() { return StateKey::Extra("step"); }
StateKey TokensSeenKey() { return StateKey::Extra("tokens_seen"); }

CheckpointSaver::CheckpointSaver(const TrainOptions& options, FullyShardedDataParallel& model, Optimizer& optimizer,
                                 std::vector<std::string> superseded)
    : options_(options), model_(model), optimizer_(optimizer), superseded_(std::move(superseded)) {}

bool CheckpointSaver::IsDue(int64_t steps_done) const {
  if (options_.checkpoint_dir.empty()) return false;
  if (steps_done == options_.learning_rate.steps) return true;
  return options_.checkpoint_every > 0 && steps_done % options_.checkpoint_every == 0;
}

absl::StatusOr<StateDict> CheckpointSaver::GatherState(int64_t steps_done, int64_t tokens_seen) {
  const StateDictTypeGuard guard(model_, SettingsOf(options_));
  ASSIGN_OR_RETURN(StateDict state, model_.GetStateDict());
  RETURN_IF_ERROR(model_.AddOptimStateDict(optimizer_, state));
  if (options_.rank0_only && model_.group().rank() != 0) return state;  // empty, and stays so
  state.Set(StepKey(), absl::StrCat(steps_done));
  state.Set(TokensSeenKey(), absl::StrCat(tokens_seen));
  return state;
}

absl::StatusOr<std::string> CheckpointSaver::Save(int64_t steps_done, int64_t tokens_seen) {
  ASSIGN_OR_RETURN(const StateDict state, GatherState(steps_done, tokens_seen));
  // What could be in the way was found superseded when the run started.
  ASSIGN_OR_RETURN(std::string path, SaveCheckpoint(state, options_.checkpoint_dir, steps_done, model_.group(),
                                                    {.overwrite = !superseded_.empty()}));
  absl::Status deleted;
  if (model_.group().rank() == 0) deleted = DeleteOld(path);
  superseded_.clear();
  RETURN_IF_ERROR(AgreeOn(model_.group(), deleted));
  return path;
}

absl::Status CheckpointSaver::DeleteOld(const std::string& saved) {
  for (const std::string& name : superseded_) {
    if (name == std::filesystem::path(saved).filename()) continue;
    RETURN_IF_ERROR(DeleteCheckpointDirectory(PosixFileSystem(), options_.checkpoint_dir, name));
  }
  return options_.keep_last > 0 ? PruneCheckpoints(options_.checkpoint_dir, options_.keep_last) : absl::OkStatus();
}

}  // namespace fsdp
