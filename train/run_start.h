// SPDX-License-Identifier: Apache-2.0
//
// RunStart: the start of a run: step 0, or the checkpoint that --resume finds. Rank 0 searches and verifies, and sends
// the result to the others, so that all ranks begin at the same step.
#ifndef FSDP_TRAIN_RUN_START_H_
#define FSDP_TRAIN_RUN_START_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// The same on every rank.
struct RunStart {
  // The first step to train, and the tokens in the steps before it, over all ranks.
  int64_t step = 0;
  int64_t tokens_seen = 0;

  // The path of the checkpoint to restore; empty without one.
  std::string checkpoint;

  // The attributes recorded in `checkpoint`, or, without a checkpoint, the model's attributes recorded in
  // options.init_from; empty if none are recorded.
  RunMetadata saved;

  // The parameters that were frozen in the run that saved `checkpoint`.
  std::vector<std::string> frozen;

  // The state of that run's gradient scaler, as ShardedGradScaler::AddStateDict writes it; empty if it had no scaler.
  std::string grad_scaler;

  // Sentences for people: newer checkpoints that were skipped, and why; guesses about a file of another program, and
  // what of it is not loaded.
  std::vector<std::string> notes;

  // Committed steps of checkpoint_dir beyond `step`, which this run replaces (EarlierCheckpoints::superseded).
  std::vector<std::string> superseded;

  // Steps that do not verify; they are kept, under another name (EarlierCheckpoints::damaged).
  std::vector<std::string> damaged;

  bool resumed() const { return !checkpoint.empty(); }
};

// The roles for reading a checkpoint that --resume finds: options.map for a path, and none for a step of ours.
std::vector<TensorRole> MapOfResume(const TrainOptions& options);

// Finds the start that `options` ask for, the same on every rank; `layout` is the model's, for checkpoints that hold
// flat parameters. Collective. kFailedPrecondition when committed steps in checkpoint_dir would be replaced without
// --overwrite; kInvalidArgument when the checkpoint holds more steps than --steps asks for; kNotFound if --resume=PATH
// is not a checkpoint that verifies.
absl::StatusOr<RunStart> FindRunStart(const TrainOptions& options, const FlatLayout& layout, ProcessGroup& group);

}  // namespace fsdp

#endif  // FSDP_TRAIN_RUN_START_H_
