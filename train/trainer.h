// SPDX-License-Identifier: Apache-2.0
//
// Trainer: one rank's whole run of train_gpt: build, resume, train, save, export. Only rank 0 prints, on stdout. Every
// rank makes one Trainer and calls the same methods in the same order.
#ifndef FSDP_TRAIN_TRAINER_H_
#define FSDP_TRAIN_TRAINER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/trace.h"
#include "fsdp/train/batch_loader.h"
#include "fsdp/train/checkpoint_saver.h"
#include "fsdp/train/run_log.h"
#include "fsdp/train/run_start.h"
#include "fsdp/train/train_options.h"
#include "fsdp/train/train_step.h"

namespace fsdp {

class Trainer {
 public:
  // Reads config and data, builds the model and fills it: from the checkpoint that --resume finds, else from
  // --init_from, else from the seed. Collective. If any rank fails, all ranks return an error.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const TrainOptions& options,
                                                         std::shared_ptr<ProcessGroup> group);

  // Trains the remaining steps, saves checkpoints as the options ask, and exports the model after the last step. If a
  // signal asked any rank to stop, all ranks finish the current step, save and return OK. With --upload,
  // rank 0 then waits until the last checkpoint is in the object store, and returns its error. Collective.
  absl::Status Train();

  // Prints the schedule of one step on rank 0, one event a line, as it is from the second step on. Collective. Trains
  // one step first, to learn the order in which the model's units run.
  absl::Status PrintSchedule();

 private:
  Trainer(const TrainOptions& options, std::shared_ptr<ProcessGroup> group)
      : options_(options), group_(std::move(group)) {}

  // The parts of Create, in order, described in trainer.cc. All are collective.
  absl::Status Build();
  absl::Status OpenData();
  absl::Status BuildModel();
  absl::Status FillModel();
  absl::Status RestoreFrom(const std::string& source, absl::Span<Optimizer* const> optimizers,
                           const std::function<absl::Status(StateDict& wanted)>& load);
  absl::Status RestoreScaler();
  absl::Status StartUploads();
  void SayStart(const std::string& source) const;
  absl::Status SayHosts() const;      // on rank 0, if there are several; collective
  absl::Status SayAttention() const;  // on rank 0, on a GPU
  absl::Status OpenLog();
  absl::Status FinishTrace();

  // Train without the wait for uploads, which only rank 0 makes.
  absl::Status TrainAndExport();

  // Computes one step.
  absl::StatusOr<StepOutcome> RunStep(int64_t step);

  // Trains one step, logs it and saves a checkpoint if one is due. True when a signal asked the run to
  // stop.
  absl::StatusOr<bool> TrainOneStep(int64_t step);

  bool is_rank0() const { return group_->rank() == 0; }

  const TrainOptions options_;
  const std::shared_ptr<ProcessGroup> group_;

  // The model's config; set by OpenData.
  CausalLmConfig config_;

  // The properties of this run (run_attributes.h): the data's after OpenData, all after FillModel; and the differences
  // from the checkpoint that it starts from.
  RestoreOptions run_;
  std::vector<AttributeDifference> differences_;

  // The start of this run; step 0 until FillModel.
  RunStart start_;

  // Each of these refers to some of those before it, so they must be destroyed in reverse order.
  std::unique_ptr<FullyShardedDataParallel> model_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
  std::unique_ptr<ShardedGradScaler> scaler_;  // null unless losses are scaled
  std::unique_ptr<BatchLoader> batches_;
  std::unique_ptr<TrainStep> train_step_;
  std::unique_ptr<CheckpointSaver> saver_;

  // RunLog::MakeTrace's; may be null.
  std::shared_ptr<Trace> trace_;

  // Null with --print_schedule.
  std::unique_ptr<RunLog> log_;

  // The time at which the step before ended.
  absl::Time step_began_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_H_
