// SPDX-License-Identifier: Apache-2.0
//
// Two ways to the same result. Unscale multiplies the gradients by 1 / scale and then looks for values that are not
// finite; that is for programs that clip in between. Without such a call Step saves the pass over all gradients: it
// checks the scaled ones and hands 1 / scale to the optimizer, which multiplies while it reads them. The check gives
// the same answer before as after, because a finite number times a factor of at most 1 is finite; below a scale of 1
// that is not so (CanFold).
//
// Each rank checks its shards alone. The counts are summed over all ranks, so all of them step or none does: a rank
// that skipped alone would have other weights from then on.
#include "fsdp/fsdp/sharded_grad_scaler.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {

ShardedGradScaler::ShardedGradScaler(ProcessGroup& group, const GradScalerOptions& options)
    : group_(group), options_(options), scale_(options.init_scale) {}

absl::StatusOr<bool> ShardedGradScaler::AnyOverflow(Optimizer& optimizer, Stream& stream) {
  Device& device = *group_.device();
  const TensorOps& ops = device.ops();
  FSDP_ASSIGN_OR_RETURN(const Tensor found_inf, Tensor::Empty(device, DType::kFloat32, {1}));
  FSDP_ASSIGN_OR_RETURN(const Buffer host, device.AllocatePinned(sizeof(float)));
  ops.Zero(found_inf, stream);
  for (const ShardedParameter* p : optimizer.parameters()) {
    if (p->has_grad && !p->interval.empty()) ops.CheckFinite(p->grad, found_inf, stream);
  }
  group_.AllReduce(found_inf, ReduceOp::kSum, stream);
  stream.CopyAsync(host.data(), found_inf.data(), sizeof(float));
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  return *reinterpret_cast<const float*>(host.data()) != 0;
}

absl::StatusOr<Tensor> ShardedGradScaler::InverseScale(Stream& stream) const {
  Device& device = *group_.device();
  FSDP_ASSIGN_OR_RETURN(const Tensor factor, Tensor::Empty(device, DType::kFloat32, {1}));
  FSDP_ASSIGN_OR_RETURN(const Buffer host, device.AllocatePinned(sizeof(float)));
  *reinterpret_cast<float*>(host.data()) = static_cast<float>(1.0 / scale_);
  stream.CopyAsync(factor.data(), host.data(), sizeof(float));
  FSDP_RETURN_IF_ERROR(stream.Synchronize());  // so `host` may go
  return factor;
}

absl::Status ShardedGradScaler::Unscale(Optimizer& optimizer, Stream& stream) {
  if (!options_.enabled) return absl::OkStatus();
  Progress& progress = progress_[&optimizer];
  if (progress.stepped) return absl::FailedPreconditionError("grad scaler: Unscale after Step; call Update first");
  if (progress.unscaled) {
    return absl::FailedPreconditionError("grad scaler: Unscale has been called since the last Update");
  }
  FSDP_ASSIGN_OR_RETURN(const Tensor factor, InverseScale(stream));
  for (const ShardedParameter* p : optimizer.parameters()) {
    if (p->has_grad && !p->interval.empty()) group_.device()->ops().ScaleBy(p->grad, factor, stream);
  }
  FSDP_ASSIGN_OR_RETURN(progress.overflowed, AnyOverflow(optimizer, stream));
  progress.unscaled = true;
  return absl::OkStatus();
}

// True if the optimizer can apply 1 / scale: the factor is at most 1, the program has set no factor of its own, and all
// gradients are on the device that has the factor.
bool ShardedGradScaler::CanFold(const Optimizer& optimizer) const {
  if (scale_ < 1 || optimizer.has_grad_factor()) return false;
  const auto& parameters = optimizer.parameters();
  return std::all_of(parameters.begin(), parameters.end(),
                     [this](const ShardedParameter* p) { return p->device == group_.device().get(); });
}

absl::StatusOr<bool> ShardedGradScaler::Step(Optimizer& optimizer, Stream& stream) {
  if (!options_.enabled) {
    FSDP_RETURN_IF_ERROR(optimizer.Step(stream));
    return true;
  }
  Progress& progress = progress_[&optimizer];
  if (progress.stepped) {
    return absl::FailedPreconditionError("grad scaler: Step has been called since the last Update");
  }
  if (!progress.unscaled && CanFold(optimizer)) {
    FSDP_ASSIGN_OR_RETURN(progress.overflowed, AnyOverflow(optimizer, stream));
    progress.unscaled = true;
    if (!progress.overflowed) {
      FSDP_ASSIGN_OR_RETURN(Tensor factor, InverseScale(stream));
      optimizer.set_grad_factor(std::move(factor));
    }
  } else if (!progress.unscaled) {
    FSDP_RETURN_IF_ERROR(Unscale(optimizer, stream));
  }
  progress.stepped = true;
  if (progress.overflowed) return false;
  FSDP_RETURN_IF_ERROR(optimizer.Step(stream));
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
