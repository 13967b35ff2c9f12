// SPDX-License-Identifier: Apache-2.0
//
// StepGraph: a training step that the host issues once and then replays as one graph (tensor/work_graph.h): forward,
// backward, their collectives, the norm of the gradients and the update. The results are the same as without capture,
// bit for bit, and the host has the norm before the update is done.
//
//   FSDP_ASSIGN_OR_RETURN(auto step, StepGraph::Create(*model, optimizer, [&] { return ForwardAndBackward(batch); }));
//   for (...) {
//     CopyToBatch();                                    // the inputs are in the same memory each time
//     FSDP_RETURN_IF_ERROR(step->Run(/*max_grad_norm=*/1));  // learning rate and step count as they are now
//     FSDP_ASSIGN_OR_RETURN(const float norm, step->clip().Norm());
//   }
//
// A program that puts work of its own on the stream between gradients and update calls ComputeGradients and Update in
// place of Run. The step is then two graphs.
//
// So each step must be the same work: the same shapes, the same number of micro-steps, the same max_grad_norm, and no
// decision by the host (as ShardedGradScaler makes; DeviceGradScaler's are the device's). Between steps the program may
// use model and optimizer freely: save, load, evaluate, or train them by other steps.
#ifndef FSDP_FSDP_STEP_GRAPH_H_
#define FSDP_FSDP_STEP_GRAPH_H_

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/device_grad_scaler.h"
#include "fsdp/fsdp/found_inf.h"
#include "fsdp/fsdp/fully_sharded_data_parallel.h"
#include "fsdp/fsdp/grad_clip.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

class ReplayGate;
class WorkGraph;

class StepGraph final {
 public:
  // The number of steps that run without capture first: they show the order of the units, and let the model and its
  // libraries allocate the memory that they keep.
  static constexpr int kEagerSteps = 2;

  // `forward_backward` issues all forwards and backwards of one step on the model's streams; it is called for the first
  // kEagerSteps steps and once more. Memory that it allocates while captured belongs to the graph, so it must not keep
  // such memory for other streams. `model` and `optimizer` are the caller's and outlive this. kFailedPrecondition, with
  // the cause and an alternative, if it is already known that a step cannot be captured; kUnimplemented for an
  // optimizer other than AdamW.
  //
  // With `found_inf`, the caller's too, an update is skipped if the norm is not finite, or if `forward_backward`, which
  // calls Begin and Check, found something on any rank. With `scaler`, the caller's too, by whose scale
  // `forward_backward` multiplies the losses, the gradients are divided by it before their norm, and it is updated; it
  // needs a `found_inf`, and the caller's BeginStep before ComputeGradients and EndStep after.
  static absl::StatusOr<std::unique_ptr<StepGraph>> Create(FullyShardedDataParallel& model, Optimizer& optimizer,
                                                           std::function<absl::Status()> forward_backward,
                                                           FoundInf* found_inf = nullptr,
                                                           DeviceGradScaler* scaler = nullptr);
  ~StepGraph();

  // Issues one step on the model's stream: gradients, their norm over all ranks, and the update; max_grad_norm as for
  // ClipGradNormAsync. Without a `found_inf` a norm that is not finite makes the gradients 0 or NaN, as
  // ClipGradNormAsync's does. kFailedPrecondition, naming the cause, if a parameter still has a gradient, if a unit is
  // unsharded, if the work cannot be captured, or if a step has been captured as two graphs. After an error the model
  // must not be used any more. Collective.
  absl::Status Run(float max_grad_norm);

  // The two parts of Run, each a graph, with the same errors. Update clears the gradients.
  absl::Status ComputeGradients(float max_grad_norm);
  absl::Status Update();

  // The update of the next step waits for `event`, such as that an asynchronous save has copied the parameters. The
  // gradients do not, also in one graph.
  void UpdateAfter(Event event) { update_after_ = std::move(event); }

  // The norm and coefficient of the last step's gradients, which the host need not wait for the update to read. Valid
  // until the next step.
  const GradClip& clip() const { return *clip_; }

  // Undoes the host's counts of the last update, which `found_inf` skipped.
  void TakeBackUpdate();

 private:
  StepGraph(FullyShardedDataParallel& model, Optimizer& optimizer, std::function<absl::Status()> forward_backward,
            FoundInf* found_inf, DeviceGradScaler* scaler);

  // Put their work on the stream, which runs or captures it.
  absl::Status IssueGradients(float max_grad_norm);
  absl::Status IssueUpdate();

  absl::Status UpdateEagerly();
  absl::Status CaptureGradients(float max_grad_norm);
  absl::Status ReplayGradients(float max_grad_norm);
  absl::Status CheckMaxGradNorm(float max_grad_norm) const;

  bool eager() const { return updates_ < kEagerSteps; }
  bool captured() const { return gradients_ != nullptr || whole_ != nullptr; }

  FullyShardedDataParallel& model_;
  Optimizer& optimizer_;
  const std::function<absl::Status()> forward_backward_;
  FoundInf* const found_inf_;                     // may be null
  DeviceGradScaler* const scaler_;                // may be null
  int updates_ = 0;                               // that were not captured
  float max_grad_norm_ = 0;                       // of the capture
  std::optional<GradClip> clip_;                  // of the graph once there is one: replays write to its memory
  std::vector<ShardedParameter*> with_gradient_;  // after gradients_
  std::unique_ptr<WorkGraph> gradients_, update_;
  std::unique_ptr<WorkGraph> whole_;  // in place of both
  Event update_after_;
  std::unique_ptr<ReplayGate> gate_;  // in whole_, for update_after_
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STEP_GRAPH_H_
