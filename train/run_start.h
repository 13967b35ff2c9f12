// SPDX-License-Identifier: Apache-2.0
//
// RunStart: where a run begins: at step 0, or after the checkpoint that --resume finds. Rank 0 searches and verifies,
// and sends the result to the others, so that all ranks begin at the same step.
#ifndef FSDP_TRAIN_RUN_START_H_
#define FSDP_TRAIN_RUN_START_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// The same on every rank.
struct RunStart {
  // The first step to train, and the tokens in the steps before it, over all ranks.
  int64_t step = 0;
  int64_t tokens_seen = 0;

  // The path of the checkpoint to restore; empty: none.
  std::string checkpoint;

  // The attributes that `checkpoint` records, or, without one, the model's of those that options.init_from does; empty
  // if it records none.
  Attributes saved;

  // The parameters that the run that saved `checkpoint` did not train.
  std::vector<std::string> frozen;

  // The state of that run's gradient scaler, as ShardedGradScaler::AddStateDict writes it; empty: it had none.
  std::string grad_scaler;

  // Sentences for people: newer checkpoints that were skipped, and why.
  std::vector<std::string> notes;

  // Committed steps of checkpoint_dir beyond `step`, which this run replaces (EarlierCheckpoints::superseded).
  std::vector<std::string> superseded;

  // Steps that do not verify; they are kept, under another name (EarlierCheckpoints::damaged).
  std::vector<std::string> damaged;

  bool resumed() const { return !checkpoint.empty(); }
};

// Finds the start that `options` ask for, the same on every rank; `layout` is the model's, for checkpoints that hold
// flat parameters. Collective. kFailedPrecondition when committed steps in checkpoint_dir would be replaced without
// --overwrite; kInvalidArgument when the checkpoint holds more steps than --steps asks for; kNotFound when
// --resume=PATH is no checkpoint that verifies.
absl::StatusOr<RunStart> FindRunStart(const TrainOptions& options, const FlatLayout& layout, ProcessGroup& group);

}  // namespace fsdp

#endif  // FSDP_TRAIN_RUN_START_H_
