// SPDX-License-Identifier: Apache-2.0
//
// TrainStep: one optimizer step of a sharded model: micro-steps, of which only the last one reduces gradients; the
// losses of all ranks; clipping; and the update. It reads like training in a single process: nothing in it depends on
// how the parameters are sharded. Used by one thread.
#ifndef FSDP_TRAIN_TRAIN_STEP_H_
#define FSDP_TRAIN_TRAIN_STEP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/device_grad_scaler.h"
#include "fsdp/fsdp/found_inf.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/fsdp/step_graph.h"
#include "fsdp/nn/cross_entropy_loss.h"
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
  // `scaler`, which scales the losses and wants a single optimizer. It decides on the device if DeviceGradScaler can,
  // and else waits for the gradients of each step.
  static absl::StatusOr<std::unique_ptr<TrainStep>> Create(FullyShardedDataParallel& model,
                                                           std::vector<Optimizer*> optimizers,
                                                           const BatchLoader& batches, std::shared_ptr<Trace> trace,
                                                           ShardedGradScaler* scaler = nullptr);

  // The same step, captured as a graph after the first few steps and replayed from then on, with the same results.
  // Every call of Run must have the same max_grad_norm. A request to stop is read when a step begins. Returns the
  // errors of StepGraph::Create (fsdp/step_graph.h), and of DeviceGradScaler::Create.
  static absl::StatusOr<std::unique_ptr<TrainStep>> CreateCaptured(FullyShardedDataParallel& model,
                                                                   Optimizer& optimizer, const BatchLoader& batches,
                                                                   ShardedGradScaler* scaler = nullptr);

  // Runs step `step`, from 0, with the optimizer's current learning rate. Collective. The update itself may still be
  // running on the model's stream when it returns. kFailedPrecondition on every rank if any rank's loss or the norm is
  // not finite; parameters and optimizer are then as before the step. With a scaler a norm that is not finite is not an
  // error: the step is skipped, and the scale is reduced.
  absl::StatusOr<StepOutcome> Run(int64_t step, float max_grad_norm);

  // From now on the model computes the loss, from tokens and targets (models/causal_lm.h), and its logits never exist
  // as a whole. Before the first step.
  void LetModelComputeLoss() { model_computes_loss_ = true; }

  // The next step's update waits for `event`; its forward and backward do not.
  void UpdateAfter(Event event);

 private:
  TrainStep(FullyShardedDataParallel& model, std::vector<Optimizer*> optimizers, const BatchLoader& batches,
            std::shared_ptr<Trace> trace, ShardedGradScaler* scaler);

  // Allocates the memory that the steps keep.
  absl::Status Allocate();

  // Lets the device decide for scaler_, if it is not null. Errors of DeviceGradScaler::Create.
  absl::Status DecideOnDevice();

  // Puts the batches of step `step` into slots_, in stream order.
  absl::Status FillBatches(int64_t step);

  // Put forward and backward on the stream: of all micro-steps, and of one, whose loss goes to losses_[micro_step].
  absl::Status ForwardBackward();
  absl::Status MicroStep(const Batch& batch, int micro_step);

  // Puts the gradients and their norm on the stream, without a graph.
  absl::Status ComputeGradients(float max_grad_norm);

  // Puts a step that is a graph on the stream, and its reports in the graph.
  absl::Status RunGraph(float max_grad_norm);
  void ReportInGraph();

  // Puts the ranks' reports on report_stream_. The event is reached when the host can read them.
  Event Report();

  // The step's results, after its reports have arrived; an error if a loss or the norm is not finite.
  absl::StatusOr<StepOutcome> Look(int64_t step) const;

  // The loss and its copy to the host; returns the gradient of `logits`, scaled.
  absl::StatusOr<Tensor> Loss(const Tensor& logits, const Batch& batch, int micro_step, Tape& tape);
  LossScale Scale() const;
  void TakeLoss(Tensor loss, int micro_step);

  // Computes the norm of the gradients and the factor that the update multiplies them by, both on the device.
  absl::Status Clip(float max_grad_norm);
  const GradClip& clip() const { return graph_ != nullptr ? graph_->clip() : *clip_; }

  // True if found_inf_ decides about the update. Otherwise the host decides: with a scaler of the host, or if some
  // gradients are not in the device's memory.
  bool device_decides() const {
    return (scaler_ == nullptr || device_scaler_ != nullptr) && clip().norm_on_device().defined();
  }
  absl::Status Update();
  void TakeBackUpdate();  // of an update that the device skipped
  absl::Status StepOptimizers();

  // The mean of losses_, once they are on the host.
  double LocalLoss() const;

  FullyShardedDataParallel& model_;
  const std::vector<Optimizer*> optimizers_;
  const BatchLoader& batches_;
  const std::shared_ptr<Trace> trace_;
  ShardedGradScaler* const scaler_;  // null: losses are not scaled
  bool model_computes_loss_ = false;

  // float32 [grad_accum] in pinned host memory, and the source tensors of the copies to it, kept until the copies ran.
  Buffer host_losses_;
  std::vector<Tensor> losses_;
  std::unique_ptr<RankReports> reports_;
  std::unique_ptr<FoundInf> found_inf_;
  std::unique_ptr<DeviceGradScaler> device_scaler_;  // null: without scaler_, or if the host decides
  Event update_after_;                               // without graph_

  // The clipping of the last step; used only if graph_ is null.
  std::optional<GradClip> clip_;

  // The memory of the batches, by micro-step.
  std::vector<BatchSlot> slots_;

  std::unique_ptr<StepGraph> graph_;  // null unless made by CreateCaptured
  Event reported_;                    // the host can read the reports of the last step

  // Its work uses the members above.
  std::unique_ptr<Stream> report_stream_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAIN_STEP_H_
