// SPDX-License-Identifier: Apache-2.0
//
// CheckpointSaver: saves model and optimizer as TrainOptions ask: when, in which form, how many are kept. step-K holds
// the state after K steps.
#ifndef FSDP_TRAIN_CHECKPOINT_SAVER_H_
#define FSDP_TRAIN_CHECKPOINT_SAVER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/async_saver.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// Extras of a saved state: texts of decimal digits.
StateKey StepKey();        // steps done
StateKey TokensSeenKey();  // by them, over all ranks

// And JSON objects: the schedule of the learning rate, the next sample, and what random numbers follow from.
StateKey LearningRateKey();
StateKey DataPositionKey();
StateKey RngKey();

// And the names of the parameters that are not trained (frozen_parameters.h); absent when all are.
StateKey FrozenKey();

// What LearningRateKey's text is in a run with `options`.
std::string DescribeLearningRate(const LearningRateOptions& options);

// What checkpoint_dir holds when the run starts.
struct EarlierCheckpoints {
  // Steps that this run replaces; they are deleted once its first checkpoint is committed, so that there always is a
  // good one.
  std::vector<std::string> superseded;

  // Steps beyond the start that do not verify. The first Save sets them aside (checkpoint/set_aside.h) before it
  // writes.
  std::vector<std::string> damaged;

  // The path of the one that the run continues from, which an incremental one links to; empty: none.
  std::string last;
};

class CheckpointSaver {
 public:
  // `options`, `model` and `optimizer` are the caller's and outlive it. `earlier` is the same on every rank.
  CheckpointSaver(const TrainOptions& options, FullyShardedDataParallel& model, Optimizer& optimizer,
                  EarlierCheckpoints earlier);

  // True when a checkpoint is due after `steps_done` steps.
  bool IsDue(int64_t steps_done) const;

  // Saves the state after `steps_done` steps, and returns a sentence about it. Collective; blocks until it is durable,
  // or copied with async_checkpoint; then the next Save or Finish returns its error. Any rank's failure is returned on
  // all.
  absl::StatusOr<std::string> Save(int64_t steps_done, int64_t tokens_seen);

  // When parameters and optimizer state may change after the last Save: at once, but on a GPU with async_checkpoint,
  // where they are still being copied.
  const Event& copied() const { return copied_; }

  // Blocks until what was saved last is durable.
  absl::Status Finish();

 private:
  // True where rank 0 alone writes and needs no copy of the state: it gets it unit by unit while it writes.
  bool Streams() const;

  // Renames what is damaged, on rank 0, before `step` is saved. What somebody repairs just now stays until the next
  // save, or is an error when it is in the way of this one. Collective.
  absl::Status SetAsideDamaged(int64_t step);
  absl::StatusOr<std::vector<std::string>> SetAsideOnRank0(int64_t step);

  absl::StatusOr<StateDict> GatherState(int64_t steps_done, int64_t tokens_seen);
  absl::StatusOr<std::string> SaveInBackground(const StateDict& state, int64_t steps_done);
  SaveOptions OptionsOfSave() const;
  absl::Status DeleteOld(const std::string& saved);

  const TrainOptions& options_;
  FullyShardedDataParallel& model_;
  Optimizer& optimizer_;
  std::vector<std::string> superseded_;
  std::vector<std::string> damaged_;
  std::atomic<bool> has_damaged_;  // for the thread that deletes
  Event copied_;
  std::string last_;                         // path of what was saved last, or resumed from
  std::unique_ptr<AsyncSaver> async_saver_;  // from the first save with async_checkpoint on
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_CHECKPOINT_SAVER_H_
