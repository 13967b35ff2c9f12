// SPDX-License-Identifier: Apache-2.0
//
// RunStart: where a run begins: at step 0, or behind the checkpoint that --resume finds. Rank 0 looks and verifies, and
// tells the others, so that all begin at the same place.
#ifndef FSDP_TRAIN_RUN_START_H_
#define FSDP_TRAIN_RUN_START_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/flat_layout.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

struct RunStart {
  int64_t step = 0;                     // the first to train
  int64_t tokens_seen = 0;              // by the steps before
  std::string checkpoint;               // what to restore; empty: nothing
  std::vector<std::string> frozen;      // parameters that the run that saved it did not train
  std::vector<std::string> notes;       // for people: newer checkpoints that were skipped, and why
  std::vector<std::string> superseded;  // committed steps of checkpoint_dir beyond `step`, which this run replaces
  std::vector<std::string> damaged;     // such that were skipped; they are kept, but out of the way

  bool resumed() const { return !checkpoint.empty(); }
};

// Finds the start that `options` ask for, the same on every rank; `layout` is the model's, for checkpoints that hold
// flat parameters. Collective. kFailedPrecondition when committed steps in checkpoint_dir would be replaced without
// --overwrite; kNotFound when --resume=PATH is no checkpoint that verifies.
absl::StatusOr<RunStart> FindRunStart(const TrainOptions& options, const FlatLayout& layout, ProcessGroup& group);

}  // namespace fsdp

#endif  // FSDP_TRAIN_RUN_START_H_
