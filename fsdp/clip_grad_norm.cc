// SPDX-License-Identifier: Apache-2.0
#include "fsdp/clip_grad_norm.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "tensor/ops.h"

namespace fsdp {
namespace {

// Calls `visit` for the gradient slice of every parameter that has one on this rank.
template <typename Visit>
void ForEachGradient(const UnitStore& units, const Visit& visit) {
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->sharded_parameters) {
      if (parameter->has_grad && !parameter->interval.empty()) visit(parameter->grad);
    }
  }
}

}  // namespace

absl::StatusOr<float> ClipShardedGradNorm(const UnitStore& units, ProcessGroup& group, float max_norm, Stream& stream) {
  Device& device = *group.device();
  const TensorOps& ops = device.ops();
  ASSIGN_OR_RETURN(const Tensor sum, Tensor::Empty(device, DType::kFloat32, {1}));
  ASSIGN_OR_RETURN(const Buffer host, device.AllocatePinned(sizeof(float)));
  float* value = reinterpret_cast<float*>(host.data());

  ops.Zero(sum, stream);
  ForEachGradient(units, [&](const Tensor& grad) { ops.AccumulateSquaredNorm(grad, sum, stream); });
  // Of units that are not sharded every rank has the whole gradient already.
  const bool sharded =
      std::any_of(units.units().begin(), units.units().end(), [](const auto& u) { return u->sharded(); });
  if (sharded) group.AllReduce(sum, ReduceOp::kSum, stream);
  stream.CopyAsync(value, sum.data(), sizeof(float));
  RETURN_IF_ERROR(stream.Synchronize());
  const float norm = std::sqrt(*value);
  const float factor = max_norm / (norm + 1e-6f);
  if (max_norm > 0 && factor < 1) {
    *value = factor;
    stream.CopyAsync(sum.data(), value, sizeof(float));
    ForEachGradient(units, [&](const Tensor& grad) { ops.ScaleBy(grad, sum, stream); });
    RETURN_IF_ERROR(stream.Synchronize());
  }
  return norm;
}

}  // namespace fsdp
