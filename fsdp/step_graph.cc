// SPDX-License-Identifier: Apache-2.0
//
// Life of a step: kEagerSteps run as they are issued; the next one is captured and replayed; later ones are replayed.
//
//   Run       PrepareReplay        the host's part of a step: checks, stale low-precision copies
//             CopyScalarsToDevice  learning rates and step counts, which captured kernels read from device memory
//             capture or replay of forward, backward, collectives, norm and clipping coefficient,
//                                  --- the norm's event; the wait for the event of UpdateAfter ---
//                                  and of the optimizer's pass, with the coefficient as its factor
//
// ComputeGradients is the part above the events, Update CopyScalarsToDevice and the part below them.
//
// A capture records and does not run, so it is followed by a replay. State that the host keeps is not in the graph and
// is set here after each replay: has_grad of the parameters that had a gradient at capture, between gradients and
// update, and the optimizer's step counts (CountReplay). The host waits for the norm's event in the graph
// (RecordForHost), and not for the update.
#include "fsdp/fsdp/step_graph.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/capturing_group.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {
namespace {

absl::Status CheckGroup(const ProcessGroup* group) {
  if (group == nullptr || CanCapture(*group)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("a step's collectives cannot be captured: backend ",
                                                    std::string(group->backend()), " of ", group->size(),
                                                    " ranks needs its hosts in each; use backend nccl, or one rank"));
}

absl::Status CheckUnit(const Unit& unit) {
  if (unit.offloaded()) {
    return absl::FailedPreconditionError(absl::StrCat("unit ", unit.display_name(),
                                                      ": its parameters are on the host, whose optimizer step cannot "
                                                      "be captured; train without CPU offload"));
  }
  FSDP_RETURN_IF_ERROR(CheckGroup(unit.groups.shard.get()));
  FSDP_RETURN_IF_ERROR(CheckGroup(unit.groups.replicate.get()));
  return CheckGroup(unit.post_forward_group.get());
}

// kFailedPrecondition, naming the cause and an alternative, for anything that needs the host in every step, because a
// captured step is replayed without it: a backend whose collectives are host calls, an optimizer step in host memory, a
// norm that is summed on the host, time stamps. Local; the same on every rank.
absl::Status CheckCanCapture(const UnitStore& units) {
  if (!HasGraphs(units.device())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model is on ", units.device().name(), ": a step can be captured only on a CUDA device"));
  }
  for (const auto& unit : units.units()) FSDP_RETURN_IF_ERROR(CheckUnit(*unit));
  for (const auto& [name, parameter] : units.unmanaged()) {
    if (!parameter->requires_grad) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter \"", name,
                     "\" is ignored by FSDP, so the norm of all gradients needs the host and a "
                     "step cannot be captured; let a unit have it, or freeze it"));
  }
  if (units.trace() != nullptr) {
    return absl::FailedPreconditionError(
        "a trace marks when work runs, by the host, and cannot be captured; trace "
        "steps that are not");
  }
  return absl::OkStatus();
}

}  // namespace

StepGraph::StepGraph(FullyShardedDataParallel& model, Optimizer& optimizer,
                     std::function<absl::Status()> forward_backward, FoundInf* found_inf, DeviceGradScaler* scaler)
    : model_(model),
      optimizer_(optimizer),
      forward_backward_(std::move(forward_backward)),
      found_inf_(found_inf),
      scaler_(scaler) {}

StepGraph::~StepGraph() = default;

absl::StatusOr<std::unique_ptr<StepGraph>> StepGraph::Create(FullyShardedDataParallel& model, Optimizer& optimizer,
                                                             std::function<absl::Status()> forward_backward,
                                                             FoundInf* found_inf, DeviceGradScaler* scaler) {
  if (scaler != nullptr && found_inf == nullptr) {
    return absl::InvalidArgumentError("a captured step with a scaler: expected a found_inf for its decision");
  }
  FSDP_RETURN_IF_ERROR(CheckCanCapture(ShardedModel::Of(model).units()));
  FSDP_RETURN_IF_ERROR(optimizer.CopyScalarsToDevice(model.stream()));
  std::unique_ptr<StepGraph> step(new StepGraph(model, optimizer, std::move(forward_backward), found_inf, scaler));
  FSDP_ASSIGN_OR_RETURN(step->gate_, CreateReplayGate(model.device()));
  return step;
}

absl::Status StepGraph::Run(float max_grad_norm) {
  if (gradients_ != nullptr) {
    return absl::FailedPreconditionError(
        "StepGraph::Run after a step that was captured as two graphs: expected "
        "ComputeGradients and Update in every step");
  }
  if (eager()) {
    FSDP_RETURN_IF_ERROR(IssueGradients(max_grad_norm));
    return UpdateEagerly();
  }
  FSDP_RETURN_IF_ERROR(ShardedModel::Of(model_).executor().PrepareReplay());
  FSDP_RETURN_IF_ERROR(optimizer_.CopyScalarsToDevice(model_.stream()));
  if (const Event event = std::exchange(update_after_, Event()); event.state() != nullptr) gate_->CloseUntil(event);
  if (whole_ == nullptr) {
    FSDP_ASSIGN_OR_RETURN(whole_, CaptureWork(model_.stream(), [&]() -> absl::Status {
                            FSDP_RETURN_IF_ERROR(IssueGradients(max_grad_norm));
                            gate_->Pass(model_.stream());
                            return IssueUpdate();
                          }));
    max_grad_norm_ = max_grad_norm;
  } else {
    FSDP_RETURN_IF_ERROR(CheckMaxGradNorm(max_grad_norm));
    optimizer_.CountReplay();
  }
  whole_->Replay();
  optimizer_.ZeroGrad();
  return absl::OkStatus();
}

absl::Status StepGraph::ComputeGradients(float max_grad_norm) {
  if (whole_ != nullptr) {
    return absl::FailedPreconditionError(
        "StepGraph::ComputeGradients after a step that was captured as one graph: expected Run in every step");
  }
  if (eager()) return IssueGradients(max_grad_norm);
  FSDP_RETURN_IF_ERROR(ShardedModel::Of(model_).executor().PrepareReplay());
  return gradients_ == nullptr ? CaptureGradients(max_grad_norm) : ReplayGradients(max_grad_norm);
}

absl::Status StepGraph::IssueGradients(float max_grad_norm) {
  clip_.reset();
  FSDP_RETURN_IF_ERROR(forward_backward_());
  if (scaler_ != nullptr) scaler_->Unscale();
  FSDP_ASSIGN_OR_RETURN(GradClip clip, model_.ClipGradNormAsync(max_grad_norm));
  if (found_inf_ != nullptr) found_inf_->CheckOnAllRanks(clip.norm_on_device(), model_.stream());
  if (scaler_ != nullptr) scaler_->Update(found_inf_->flag());
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

absl::Status StepGraph::CheckMaxGradNorm(float max_grad_norm) const {
  if (max_grad_norm == max_grad_norm_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("max_grad_norm ", max_grad_norm, " of a step that was captured with ",
                                                 max_grad_norm_, ": expected the same in every step"));
}

absl::Status StepGraph::ReplayGradients(float max_grad_norm) {
  FSDP_RETURN_IF_ERROR(CheckMaxGradNorm(max_grad_norm));
  gradients_->Replay();
  for (ShardedParameter* parameter : with_gradient_) parameter->has_grad = true;
  return absl::OkStatus();
}

absl::Status StepGraph::UpdateEagerly() {
  model_.stream().Wait(std::exchange(update_after_, Event()));
  FSDP_RETURN_IF_ERROR(IssueUpdate());
  ++updates_;
  optimizer_.ZeroGrad();
  return absl::OkStatus();
}

absl::Status StepGraph::Update() {
  if (eager()) return UpdateEagerly();
  model_.stream().Wait(std::exchange(update_after_, Event()));
  FSDP_RETURN_IF_ERROR(optimizer_.CopyScalarsToDevice(model_.stream()));
  if (update_ == nullptr) {
    FSDP_ASSIGN_OR_RETURN(update_, CaptureWork(model_.stream(), [this] { return IssueUpdate(); }));
  } else {
    optimizer_.CountReplay();
  }
  update_->Replay();
  optimizer_.ZeroGrad();
  return absl::OkStatus();
}

// An eager step that was skipped does not count: the optimizer may have no state yet, and a capture needs it.
void StepGraph::TakeBackUpdate() {
  optimizer_.TakeBackStep();
  if (!captured()) --updates_;
}

absl::Status StepGraph::IssueUpdate() {
  optimizer_.set_grad_factor(clip_->coefficient());
  if (found_inf_ != nullptr) optimizer_.set_found_inf(found_inf_->flag());
  return optimizer_.Step(model_.stream());
}

}  // namespace fsdp
