// SPDX-License-Identifier: Apache-2.0
//
// CheckpointSaver: saves model and optimizer as TrainOptions require: when, in which form, and how many checkpoints are
// kept. step-K holds the state after K steps. Every rank has one and makes the same calls; used by one thread of each
// rank.
#ifndef FSDP_TRAIN_CHECKPOINT_SAVER_H_
#define FSDP_TRAIN_CHECKPOINT_SAVER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/async_saver.h"
#include "fsdp/checkpoint/object/background_uploader.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// The keys of the extras that a run saves: texts of decimal digits.
StateKey StepKey();        // steps done
StateKey TokensSeenKey();  // tokens in these steps, over all ranks

// JSON objects: the schedule of the learning rate, the next sample, and the seed of all random numbers.
StateKey LearningRateKey();
StateKey LrSchedulerKey();  // lr_scheduler_state.h; absent without --lr_schedule
StateKey DataPositionKey();
StateKey RngKey();

// The names of the parameters that are not trained (frozen_parameters.h); absent when all are trained.
StateKey FrozenKey();

// The state of the gradient scaler; absent in a run without one.
StateKey GradScalerKey();

// The text under LearningRateKey() in a run with `options`.
std::string DescribeLearningRate(const LearningRateOptions& options);

// The contents of checkpoint_dir when the run starts.
struct EarlierCheckpoints {
  // Steps that this run replaces; they are deleted once its first checkpoint is committed, so that there is always a
  // good one.
  std::vector<std::string> superseded;

  // Steps beyond the start that do not verify. The first Save sets them aside (checkpoint/native/set_aside.h) before it
  // writes.
  std::vector<std::string> damaged;

  // The path of the checkpoint that the run continues from, whose files an incremental save links; empty if there is
  // none.
  std::string last;
};

class CheckpointSaver {
 public:
  // The caller keeps `options`, `model` and `optimizers`, which must outlive the saver. `earlier` is the same on every
  // rank.
  CheckpointSaver(const TrainOptions& options, FullyShardedDataParallel& model, std::vector<Optimizer*> optimizers,
                  EarlierCheckpoints earlier);

  // The attributes of all checkpoints that are saved from now on, the same on every rank.
  void set_attributes(RunMetadata attributes) { attributes_ = std::move(attributes); }

  // The scaler whose state checkpoints hold; owned by the caller, and must outlive the saver. Null without a scaler.
  void set_grad_scaler(const ShardedGradScaler* scaler) { scaler_ = scaler; }

  // True when a checkpoint is due after `steps_done` steps.
  bool IsDue(int64_t steps_done) const;

  // Saves the state after `steps_done` steps, and returns a sentence about it. Collective. Blocks until the checkpoint
  // is durable; with async_checkpoint only until the state is copied, and then the next Save or Finish returns the
  // error of the write. Any rank's failure is returned on all ranks.
  absl::StatusOr<std::string> Save(int64_t steps_done, int64_t tokens_seen);

  // Reached when parameters and optimizer state may change after the last Save: immediately, except on a GPU with
  // async_checkpoint, whose stream may still be copying them.
  const Event& copied() const { return copied_; }

  // Blocks until the last checkpoint is durable.
  absl::Status Finish();

  // Uploads the checkpoints that are saved from now on; only rank 0 calls it. Only FinishUploads waits for an upload: a
  // slow store must not hold up the other ranks in a collective.
  void set_uploader(std::unique_ptr<BackgroundUploader> uploader) { uploader_ = std::move(uploader); }

  // Blocks until the last checkpoint is in the object store. Not collective: rank 0 returns the error of that upload,
  // other ranks return OK immediately. Call it last.
  absl::Status FinishUploads();

 private:
  // True if only rank 0 writes, and receives the state unit by unit while it writes, so that no rank holds a whole
  // copy.
  bool Streams() const;

  // Renames the damaged steps, on rank 0, before `step` is saved. A step that is being repaired at this moment keeps
  // its name until the next save, or is an error if it has the number `step`. Collective.
  absl::Status SetAsideDamaged(int64_t step);
  absl::StatusOr<std::vector<std::string>> SetAsideOnRank0(int64_t step);

  // An error unless rank 0, which calls it, can allocate the state that it is about to gather and keep.
  absl::Status CheckRoomOnRank0() const;

  absl::StatusOr<StateDict> GatherState(int64_t steps_done, int64_t tokens_seen);
  absl::StatusOr<std::string> SaveInBackground(const StateDict& state, int64_t steps_done);
  SaveOptions OptionsOfSave();
  absl::Status DeleteOld(const std::string& saved);
  void SayOnce(const std::string& sentence);  // from any thread

  const TrainOptions& options_;
  FullyShardedDataParallel& model_;
  const std::vector<Optimizer*> optimizers_;
  const ShardedGradScaler* scaler_ = nullptr;
  RunMetadata attributes_;
  std::vector<std::string> superseded_;
  std::vector<std::string> damaged_;
  std::atomic<bool> has_damaged_;  // read by the thread that deletes
  std::mutex mutex_;               // guards said_
  std::set<std::string> said_;     // printed so far
  Event copied_;
  std::string last_;                              // path of the checkpoint saved last, or resumed from
  std::unique_ptr<BackgroundUploader> uploader_;  // on rank 0 with --upload, else null
  std::unique_ptr<AsyncSaver> async_saver_;       // from the first save with async_checkpoint on; uses uploader_
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_CHECKPOINT_SAVER_H_
