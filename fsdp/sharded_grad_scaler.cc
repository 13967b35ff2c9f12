// SPDX-License-Identifier: Apache-2.0
#include "fsdp/sharded_grad_scaler.h"

#include <cmath>

#include "base/status_macros.h"
#include "tensor/ops.h"

namespace fsdp {

ShardedGradScaler::ShardedGradScaler(ProcessGroup& group, const GradScalerOptions& options)
    : group_(group), options_(options), scale_(options.init_scale) {}

// One number says it for all elements: a sum of squares is finite only where each of them is.
absl::StatusOr<bool> ShardedGradScaler::AnyOverflow(Optimizer& optimizer, Stream& stream) {
  Device& device = *group_.device();
  const TensorOps& ops = device.ops();
  ASSIGN_OR_RETURN(const Tensor sum, Tensor::Empty(device, DType::kFloat32, {1}));
  ASSIGN_OR_RETURN(const Buffer host, device.AllocatePinned(sizeof(float)));
  ops.Zero(sum, stream);
  for (const ShardedParameter* p : optimizer.parameters()) {
    if (p->has_grad && !p->interval.empty()) ops.AccumulateSquaredNorm(p->grad, sum, stream);
  }
  group_.AllReduce(sum, ReduceOp::kSum, stream);
  stream.CopyAsync(host.data(), sum.data(), sizeof(float));
  RETURN_IF_ERROR(stream.Synchronize());
  return !std::isfinite(*reinterpret_cast<const float*>(host.data()));
}

absl::Status ShardedGradScaler::Unscale(Optimizer& optimizer, Stream& stream) {
  if (!options_.enabled) return absl::OkStatus();
  Progress& progress = progress_[&optimizer];
  if (progress.stepped) return absl::FailedPreconditionError("grad scaler: Unscale after Step; call Update first");
  if (progress.unscaled) {
    return absl::FailedPreconditionError("grad scaler: Unscale has been called since the last Update");
  }
  Device& device = *group_.device();
  ASSIGN_OR_RETURN(const Tensor factor, Tensor::Empty(device, DType::kFloat32, {1}));
  ASSIGN_OR_RETURN(const Buffer host, device.AllocatePinned(sizeof(float)));
  *reinterpret_cast<float*>(host.data()) = static_cast<float>(1.0 / scale_);
  stream.CopyAsync(factor.data(), host.data(), sizeof(float));
  for (const ShardedParameter* p : optimizer.parameters()) {
    if (p->has_grad && !p->interval.empty()) device.ops().ScaleBy(p->grad, factor, stream);
  }
  ASSIGN_OR_RETURN(progress.overflowed, AnyOverflow(optimizer, stream));  // waits, so `host` may go
  progress.unscaled = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> ShardedGradScaler::Step(Optimizer& optimizer, Stream& stream) {
  if (!options_.enabled) {
    RETURN_IF_ERROR(optimizer.Step(stream));
    return true;
  }
  if (progress_[&optimizer].stepped) {
    return absl::FailedPreconditionError("grad scaler: Step has been called since the last Update");
  }
  if (!progress_[&optimizer].unscaled) RETURN_IF_ERROR(Unscale(optimizer, stream));
  Progress& progress = progress_[&optimizer];
  progress.stepped = true;
  if (progress.overflowed) return false;
  RETURN_IF_ERROR(optimizer.Step(stream));
  return true;
}

absl::Status ShardedGradScaler::Update(std::optional<double> new_scale) {
  if (!options_.enabled) return absl::OkStatus();
  if (new_scale.has_value()) {
    scale_ = *new_scale;
    progress_.clear();
    return absl::OkStatus();
  }
  bool unscaled = false, overflowed = false;
  for (const auto& [optimizer, progress] : progress_) {
    unscaled |= progress.unscaled;
    overflowed |= progress.overflowed;
  }
  if (!unscaled) return absl::FailedPreconditionError("grad scaler: Update with nothing unscaled since the last one");
  progress_.clear();
  if (overflowed) {
    scale_ *= options_.backoff_factor;
    steps_without_overflow_ = 0;
  } else if (++steps_without_overflow_ == options_.growth_interval) {
    scale_ *= options_.growth_factor;
    steps_without_overflow_ = 0;
  }
  return absl::OkStatus();
}

}  // namespace fsdp
