// SPDX-License-Identifier: Apache-2.0
//
// TrainStep: one optimizer step of a sharded model: micro-steps, of which only the last one reduces gradients, the
// losses of all ranks, clipping, and the update. It reads like training in a single process: nothing in it depends on
// how the parameters are sharded. Used by one thread.
#ifndef FSDP_TRAIN_TRAIN_STEP_H_
#define FSDP_TRAIN_TRAIN_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/fsdp/step_graph.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/trace.h"
#include "fsdp/train/batch_loader.h"
#include "fsdp/train/rank_report.h"

namespace fsdp {

struct StepOutcome {
  // As the fields of StepMetrics.
  double loss = 0;
  double grad_norm = 0;
  std::optional<double> scale;
  int64_t peak_bytes = 0;

  // A signal asked any rank to stop; the same on all ranks.
  bool stop_requested = false;
};

class TrainStep {
 public:
  // The caller keeps ownership of all arguments, which must outlive the TrainStep. `trace` may be null, and so may
  // `scaler`, which scales the losses; it waits for the gradients of each step.
  static absl::StatusOr<std::unique_ptr<TrainStep>> Create(FullyShardedDataParallel& model, Optimizer& optimizer,
                                                           const BatchLoader& batches, std::shared_ptr<Trace> trace,
                                                           ShardedGradScaler* scaler = nullptr);

  // The same step, captured as graphs after the first few steps and replayed from then on, with the same results. Every
  // call of Run must have the same max_grad_norm. Errors are those of StepGraph::Create (fsdp/step_graph.h).
  static absl::StatusOr<std::unique_ptr<TrainStep>> CreateCaptured(FullyShardedDataParallel& model,
                                                                   Optimizer& optimizer, const BatchLoader& batches);

  // Step `step`, from 0, with the optimizer's learning rate as it is. Collective. The update itself may still be
  // running on the model's stream when it returns. kFailedPrecondition on every rank when any rank's loss or the norm
  // is not finite; the optimizer then did not step. With a
  // scaler a norm that is not finite is no error: the step is left out, and the scale falls.
  absl::StatusOr<StepOutcome> Run(int64_t step, float max_grad_norm);

  // The next step's update waits for `event`; its forward and backward do not.
  void UpdateAfter(Event event) { update_after_ = std::move(event); }

 private:
  TrainStep(FullyShardedDataParallel& model, Optimizer& optimizer, const BatchLoader& batches,
            std::shared_ptr<Trace> trace, ShardedGradScaler* scaler);

  using BatchOf = std::function<absl::StatusOr<Batch>(int micro_step)>;

  absl::Status AllocateReports();

  // Put forward and backward on the stream: of all micro-steps, and of one, whose loss goes to losses_[micro_step].
  absl::Status ForwardBackward(const BatchOf& batch_of);
  absl::Status MicroStep(const Batch& batch, int micro_step);

  // Put the gradients of step `step`, their norm and the ranks' reports on the stream. The event is reached when the
  // reports can be read on the host.
  absl::StatusOr<Event> ComputeGradients(int64_t step, float max_grad_norm);
  absl::StatusOr<Event> ComputeCaptured(int64_t step, float max_grad_norm);
  Event Report();

  // The loss and its copy to the host; returns the gradient of `logits`.
  absl::StatusOr<Tensor> Loss(const Tensor& logits, const Batch& batch, int micro_step, Tape& tape);

  // Computes the norm of the gradients and the factor that the update multiplies them by, both on the device.
  absl::Status Clip(float max_grad_norm);
  const GradClip& clip() const { return graph_ != nullptr ? graph_->clip() : *clip_; }
  absl::Status Update();
  absl::Status StepOptimizer();

  // The mean of losses_, once they are on the host.
  double LocalLoss() const;

  FullyShardedDataParallel& model_;
  Optimizer& optimizer_;
  const BatchLoader& batches_;
  const std::shared_ptr<Trace> trace_;
  ShardedGradScaler* const scaler_;  // null: losses are not scaled

  // float32 [grad_accum] in pinned host memory, and the tensors that it is copied from, which live until the copy ran.
  Buffer host_losses_;
  std::vector<Tensor> losses_;
  std::unique_ptr<RankReports> reports_;
  Event update_after_;

  // The clipping of the last step; used only if graph_ is null.
  std::optional<GradClip> clip_;

  // The memory that graph_ reads its batches from, by micro-step; graph_ is null unless made by CreateCaptured.
  std::vector<BatchSlot> slots_;
  std::unique_ptr<StepGraph> graph_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAIN_STEP_H_
