// SPDX-License-Identifier: Apache-2.0
//
// Life of a step: kEagerSteps run as they are issued; the next one is captured and replayed; later ones are replayed.
//
//   ComputeGradients   PrepareReplay  the host's part of a step: checks, stale low-precision copies
//                      capture or replay of forward, backward, collectives, norm and clipping coefficient
//   Update             UploadScalars  learning rates and step counts, which captured kernels read from device memory
//                      capture or replay of the optimizer's pass, with the coefficient as its factor
//
// A capture records and does not run, so it is followed by a replay. State that the host keeps is not in the graph and
// is set here after each replay: has_grad of the parameters that had a gradient at capture, and the optimizer's step
// counts (CountReplay). There are two graphs instead of one so that the norm's event is reached before the update is
// done, and so that the update can wait for an event that no graph has.
#include "fsdp/fsdp/step_graph.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/units/capture_check.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {

StepGraph::StepGraph(FullyShardedDataParallel& model, Optimizer& optimizer,
                     std::function<absl::Status()> forward_backward, FoundInf* found_inf)
    : model_(model), optimizer_(optimizer), forward_backward_(std::move(forward_backward)), found_inf_(found_inf) {}

StepGraph::~StepGraph() = default;

absl::StatusOr<std::unique_ptr<StepGraph>> StepGraph::Create(FullyShardedDataParallel& model, Optimizer& optimizer,
                                                             std::function<absl::Status()> forward_backward,
                                                             FoundInf* found_inf) {
  FSDP_RETURN_IF_ERROR(CheckCanCapture(ShardedModel::Of(model).units()));
  FSDP_RETURN_IF_ERROR(optimizer.UploadScalars(model.stream()));
  return std::unique_ptr<StepGraph>(new StepGraph(model, optimizer, std::move(forward_backward), found_inf));
}

absl::Status StepGraph::ComputeGradients(float max_grad_norm) {
  if (eager()) return IssueGradients(max_grad_norm);
  FSDP_RETURN_IF_ERROR(ShardedModel::Of(model_).executor().PrepareReplay());
  return gradients_ == nullptr ? CaptureGradients(max_grad_norm) : ReplayGradients(max_grad_norm);
}

absl::Status StepGraph::IssueGradients(float max_grad_norm) {
  clip_.reset();
  FSDP_RETURN_IF_ERROR(forward_backward_());
  FSDP_ASSIGN_OR_RETURN(GradClip clip, model_.DeferClipGradNorm(max_grad_norm));
  if (found_inf_ != nullptr) found_inf_->CheckOnAllRanks(clip.norm_on_device(), model_.stream());
  clip_.emplace(std::move(clip));
  return absl::OkStatus();
}

absl::Status StepGraph::CaptureGradients(float max_grad_norm) {
  FSDP_ASSIGN_OR_RETURN(gradients_, CaptureWork(model_.stream(), [&] { return IssueGradients(max_grad_norm); }));
  max_grad_norm_ = max_grad_norm;
  for (ShardedParameter* parameter : optimizer_.parameters()) {
    if (parameter->has_grad) with_gradient_.push_back(parameter);
  }
  gradients_->Replay();
  return absl::OkStatus();
}

absl::Status StepGraph::ReplayGradients(float max_grad_norm) {
  if (max_grad_norm != max_grad_norm_) {
    return absl::InvalidArgumentError(absl::StrCat("max_grad_norm ", max_grad_norm,
                                                   " of a step that was captured with ", max_grad_norm_,
                                                   ": expected the same in every step"));
  }
  gradients_->Replay();
  for (ShardedParameter* parameter : with_gradient_) parameter->has_grad = true;
  return absl::OkStatus();
}

absl::Status StepGraph::Update() {
  if (eager()) {
    FSDP_RETURN_IF_ERROR(IssueUpdate());
    ++updates_;
  } else {
    FSDP_RETURN_IF_ERROR(optimizer_.UploadScalars(model_.stream()));
    if (update_ == nullptr) {
      FSDP_ASSIGN_OR_RETURN(update_, CaptureWork(model_.stream(), [this] { return IssueUpdate(); }));
    } else {
      optimizer_.CountReplay();
    }
    update_->Replay();
  }
  optimizer_.ZeroGrad();
  return absl::OkStatus();
}

absl::Status StepGraph::IssueUpdate() {
  optimizer_.set_grad_factor(clip_->coefficient());
  if (found_inf_ != nullptr) optimizer_.set_found_inf(found_inf_->flag());
  return optimizer_.Step(model_.stream());
}

}  // namespace fsdp
