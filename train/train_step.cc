// SPDX-License-Identifier: Apache-2.0
//
// The work of one step on its streams (time goes down):
//
//   host                          compute stream                              report stream
//   issue micro-steps             forward, loss, backward; gradients          |
//                                 accumulate in the shards; found_inf_        |
//                                 notes losses that are not finite            |
//   issue Clip                    norm of the gradients -> coefficient;       |
//                                 found_inf_ of all ranks                     |
//   issue Report                  |                                           copy this rank's report, all-gather the
//   issue Update                  AdamW, which multiplies gradients by the    reports, copy them to the host
//                                 coefficient as it reads them, and changes   |
//                                 nothing if found_inf_ is set                |
//   wait for the reports          |                                           |
//   check losses and norm
//
// So a loss of any rank or a norm that is not finite stops all ranks with unchanged weights, and the device never waits
// for the host: while the host checks, the update runs. With StepGraph the step is replayed as one graph. It has the
// reports too, after the last backward and made by the device, and the host waits for events in it (RecordForHost).
//
// With a scaler the device divides the gradients before their norm and updates the scale with found_inf_, which the
// next step's losses read. If the host has to decide, because some gradients are not in the device's memory or the
// device is a host, it waits for the reports and the norm, and then issues the update.
#include "fsdp/train/train_step.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/ordered_memory.h"
#include "fsdp/tensor/work_graph.h"
#include "fsdp/train/stop_signal.h"

namespace fsdp {
namespace {

// An update along a gradient that is not finite would leave no finite weight, and the next checkpoint would save them.
absl::Status CheckFinite(float grad_norm, int64_t step) {
  if (std::isfinite(grad_norm)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("step %d: the norm of the gradients is %g, expected a finite number; the optimizer did not step",
                      step, grad_norm));
}

}  // namespace

TrainStep::TrainStep(FullyShardedDataParallel& model, std::vector<Optimizer*> optimizers, const BatchLoader& batches,
                     std::shared_ptr<Trace> trace, ShardedGradScaler* scaler)
    : model_(model),
      optimizers_(std::move(optimizers)),
      batches_(batches),
      trace_(std::move(trace)),
      scaler_(scaler),
      losses_(batches.shape().grad_accum) {}

absl::StatusOr<std::unique_ptr<TrainStep>> TrainStep::Create(FullyShardedDataParallel& model,
                                                             std::vector<Optimizer*> optimizers,
                                                             const BatchLoader& batches, std::shared_ptr<Trace> trace,
                                                             ShardedGradScaler* scaler) {
  std::unique_ptr<TrainStep> step(new TrainStep(model, std::move(optimizers), batches, std::move(trace), scaler));
  FSDP_RETURN_IF_ERROR(step->Allocate());
  if (absl::Status decides = step->DecideOnDevice(); !decides.ok() && !absl::IsUnimplemented(decides)) return decides;
  return step;
}

absl::StatusOr<std::unique_ptr<TrainStep>> TrainStep::CreateCaptured(FullyShardedDataParallel& model,
                                                                     Optimizer& optimizer, const BatchLoader& batches,
                                                                     ShardedGradScaler* scaler) {
  std::unique_ptr<TrainStep> step(new TrainStep(model, {&optimizer}, batches, /*trace=*/nullptr, scaler));
  FSDP_RETURN_IF_ERROR(step->Allocate());
  FSDP_RETURN_IF_ERROR(step->DecideOnDevice());
  TrainStep* const captured = step.get();
  const auto forward_backward = [captured] { return captured->ForwardBackward(); };
  FSDP_ASSIGN_OR_RETURN(step->graph_, StepGraph::Create(model, optimizer, forward_backward, step->found_inf_.get(),
                                                        step->device_scaler_.get()));
  return step;
}

absl::Status TrainStep::Allocate() {
  FSDP_ASSIGN_OR_RETURN(host_losses_, model_.device().AllocatePinned(batches_.shape().grad_accum * sizeof(float)));
  FSDP_ASSIGN_OR_RETURN(found_inf_, FoundInf::Create(model_.group()));
  for (int a = 0; a < batches_.shape().grad_accum; ++a) {
    FSDP_ASSIGN_OR_RETURN(BatchSlot slot, batches_.NewSlot(model_.stream()));
    slots_.push_back(std::move(slot));
  }
  FSDP_ASSIGN_OR_RETURN(report_stream_, model_.device().CreateStream("report"));
  FSDP_ASSIGN_OR_RETURN(reports_, RankReports::Create(model_.group()));
  return absl::OkStatus();
}

absl::Status TrainStep::DecideOnDevice() {
  if (scaler_ == nullptr) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(device_scaler_, DeviceGradScaler::Create(model_, *scaler_));
  return absl::OkStatus();
}

// The batches are copied to the same memory in each step: the host need not keep a batch until it is copied, and a
// graph has its addresses.
absl::Status TrainStep::FillBatches(int64_t step) {
  for (size_t a = 0; a < slots_.size(); ++a) {
    FSDP_RETURN_IF_ERROR(batches_.Fill(step, static_cast<int>(a), slots_[a], model_.stream()));
  }
  return absl::OkStatus();
}

absl::Status TrainStep::ForwardBackward() {
  Stream& stream = model_.stream();
  const int grad_accum = batches_.shape().grad_accum;
  // One flag for the whole step: any micro-step may set it.
  found_inf_->Begin(stream);
  for (int a = 0; a < grad_accum; ++a) {
    std::optional<NoSyncGuard> no_sync;
    // Only the last micro-step reduces; the others add to the gradients.
    if (a + 1 < grad_accum) no_sync.emplace(model_);
    FSDP_RETURN_IF_ERROR(MicroStep(slots_[a].batch, a));
    if (no_sync.has_value() && OrderedMemoryOf(stream) == nullptr) {
      // Without this wait the host would run ahead and hold the activations of all micro-steps at one time.
      FSDP_RETURN_IF_ERROR(stream.Synchronize());
    }
  }
  if (graph_ != nullptr) ReportInGraph();
  return absl::OkStatus();
}

// Set here too, since a step that is not replayed allocates memory after RunGraph has set them.
void TrainStep::ReportInGraph() {
  Stream& stream = model_.stream();
  reports_->SetKnown(StopRequested(), model_.device().peak_allocated_bytes());
  reports_->GatherOnDevice(stream);
  reported_ = RecordForHost(stream);
}

absl::Status TrainStep::MicroStep(const Batch& batch, int micro_step) {
  Tape tape = model_.NewTape();
  if (model_computes_loss_) {
    tape.set_loss_scale(Scale());
    FSDP_ASSIGN_OR_RETURN(TensorList outputs, model_.Forward(TensorList{batch.tokens, batch.targets}, tape));
    TakeLoss(std::move(outputs.front()), micro_step);
    return model_.Backward(TensorList{Tensor()}, tape).status();
  }
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, model_.Forward(batch.tokens, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_logits, Loss(logits, batch, micro_step, tape));
  return model_.Backward(grad_logits, tape).status();
}

absl::StatusOr<Tensor> TrainStep::Loss(const Tensor& logits, const Batch& batch, int micro_step, Tape& tape) {
  const TraceScope span(trace_.get(), model_.stream(), [] { return std::string("loss"); });
  const auto compute = [&](const auto& scale) {
    return CrossEntropyLoss().ForwardBackward(logits, batch.targets, scale, tape);
  };
  FSDP_ASSIGN_OR_RETURN(CrossEntropyLoss::LossAndGradient made, std::visit(compute, Scale()));
  TakeLoss(std::move(made.loss), micro_step);
  return std::move(made.grad_logits);
}

// The copy to the host reads the loss tensor after this returns, so losses_ holds it until the next step.
void TrainStep::TakeLoss(Tensor loss, int micro_step) {
  Stream& stream = model_.stream();
  found_inf_->Check(loss, stream);
  if (graph_ != nullptr) {
    reports_->AddLoss(loss, micro_step, batches_.shape().grad_accum, stream);
  } else {
    stream.CopyAsync(host_losses_.data() + micro_step * sizeof(float), loss.data(), sizeof(float));
  }
  losses_[micro_step] = std::move(loss);
}

// The gradient is divided by the number of micro-steps, since their gradients are added up, and multiplied by the
// scaler's scale.
LossScale TrainStep::Scale() const {
  const auto grad_accum = static_cast<float>(batches_.shape().grad_accum);
  if (device_scaler_ != nullptr) return DeviceScale{.scale = device_scaler_->scale(), .divisor = grad_accum};
  return (scaler_ == nullptr ? 1 : scaler_->scale()) / grad_accum;
}

double TrainStep::LocalLoss() const {
  const auto* losses = reinterpret_cast<const float*>(host_losses_.data());
  const int grad_accum = batches_.shape().grad_accum;
  double mean = 0;
  for (int a = 0; a < grad_accum; ++a) mean += static_cast<double>(losses[a]) / grad_accum;
  return mean;
}

absl::StatusOr<StepOutcome> TrainStep::Run(int64_t step, float max_grad_norm) {
  FSDP_RETURN_IF_ERROR(FillBatches(step));
  if (device_scaler_ != nullptr) FSDP_RETURN_IF_ERROR(device_scaler_->BeginStep());
  bool issued = true;
  if (graph_ != nullptr) {
    FSDP_RETURN_IF_ERROR(RunGraph(max_grad_norm));
  } else {
    FSDP_RETURN_IF_ERROR(ComputeGradients(max_grad_norm));
    reported_ = Report();
    issued = device_decides();
    if (issued) FSDP_RETURN_IF_ERROR(Update());
  }
  FSDP_RETURN_IF_ERROR(reported_.Synchronize());
  const absl::StatusOr<StepOutcome> outcome = Look(step);
  bool skipped = !outcome.ok();
  // After the outcome, which has this step's scale.
  if (outcome.ok() && device_scaler_ != nullptr) {
    FSDP_ASSIGN_OR_RETURN(skipped, device_scaler_->EndStep());
  }
  // The device did not update (found_inf_), so the optimizer's count of steps must not include this step.
  if (skipped && issued) TakeBackUpdate();
  if (outcome.ok() && !issued) FSDP_RETURN_IF_ERROR(Update());
  return outcome;
}

absl::StatusOr<StepOutcome> TrainStep::Look(int64_t step) const {
  const std::vector<RankReport> reports = reports_->Read();
  StepOutcome outcome;
  FSDP_ASSIGN_OR_RETURN(outcome.loss, MeanLoss(reports, step));
  for (const RankReport& report : reports) {
    outcome.peak_bytes = std::max(outcome.peak_bytes, static_cast<int64_t>(report.peak_bytes));
    outcome.stop_requested |= report.stop_requested != 0;
  }
  // Its copy is before the reports in stream order, or soon after them in a graph.
  FSDP_ASSIGN_OR_RETURN(const float grad_norm, clip().Norm());
  if (scaler_ == nullptr) FSDP_RETURN_IF_ERROR(CheckFinite(grad_norm, step));
  outcome.grad_norm = grad_norm;
  if (scaler_ != nullptr) outcome.scale = scaler_->scale();
  return outcome;
}

absl::Status TrainStep::RunGraph(float max_grad_norm) {
  reports_->SetKnown(StopRequested(), model_.device().peak_allocated_bytes());
  return graph_->Run(max_grad_norm);
}

absl::Status TrainStep::ComputeGradients(float max_grad_norm) {
  FSDP_RETURN_IF_ERROR(ForwardBackward());
  if (device_scaler_ != nullptr) {
    device_scaler_->Unscale();
  } else if (scaler_ != nullptr) {
    FSDP_RETURN_IF_ERROR(scaler_->Unscale(*optimizers_.front(), model_.stream()));
  }
  FSDP_RETURN_IF_ERROR(Clip(max_grad_norm));
  if (device_decides()) found_inf_->CheckOnAllRanks(clip_->norm_on_device(), model_.stream());
  if (device_scaler_ != nullptr) device_scaler_->Update(found_inf_->flag());
  return absl::OkStatus();
}

// On a separate stream: the device's stream would wait for the host function, which would hold up work.
Event TrainStep::Report() {
  report_stream_->Wait(model_.stream().Record());
  reports_->Gather(
      [this] {
        return RankReport{.loss = LocalLoss(),
                          .stop_requested = StopRequested() ? 1.0 : 0.0,
                          .peak_bytes = static_cast<double>(model_.device().peak_allocated_bytes())};
      },
      *report_stream_);
  return report_stream_->Record();
}

absl::Status TrainStep::Clip(float max_grad_norm) {
  const TraceScope span(trace_.get(), model_.stream(), [] { return std::string("clip_grad_norm"); });
  FSDP_ASSIGN_OR_RETURN(GradClip clip, model_.ClipGradNormAsync(max_grad_norm));
  clip_.reset();
  clip_.emplace(std::move(clip));
  return absl::OkStatus();
}

void TrainStep::UpdateAfter(Event event) {
  if (graph_ != nullptr) return graph_->UpdateAfter(std::move(event));
  update_after_ = std::move(event);
}

void TrainStep::TakeBackUpdate() {
  if (graph_ != nullptr) return graph_->TakeBackUpdate();
  for (Optimizer* optimizer : optimizers_) optimizer->TakeBackStep();
}

absl::Status TrainStep::Update() {
  Stream& stream = model_.stream();
  const TraceScope span(trace_.get(), stream, [] { return std::string("optimizer"); });
  // An asynchronous save may still be copying the parameters that the update will change.
  stream.Wait(std::exchange(update_after_, Event()));
  for (Optimizer* optimizer : optimizers_) {
    optimizer->set_grad_factor(clip_->coefficient());
    if (device_decides()) optimizer->set_found_inf(found_inf_->flag());
  }
  FSDP_RETURN_IF_ERROR(StepOptimizers());
  for (Optimizer* optimizer : optimizers_) optimizer->ZeroGrad();
  return absl::OkStatus();
}

// A step that the scaler skips keeps its grad_factor, a NaN, which the next one replaces.
absl::Status TrainStep::StepOptimizers() {
  Stream& stream = model_.stream();
  if (scaler_ != nullptr && device_scaler_ == nullptr) {
    FSDP_RETURN_IF_ERROR(scaler_->Step(*optimizers_.front(), stream).status());
    return scaler_->Update();
  }
  for (Optimizer* optimizer : optimizers_) FSDP_RETURN_IF_ERROR(optimizer->Step(stream));
  return absl::OkStatus();
}

}  // namespace fsdp
