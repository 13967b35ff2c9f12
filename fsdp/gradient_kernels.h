// SPDX-License-Identifier: Apache-2.0
//
// Kernels on the gradients of one optimizer or model, which may be on several devices: gradients of an offloaded unit
// are in host memory, which a GPU's kernels cannot reach unless it is pinned. The kernels of each gradient's device
// handle it, on a stream of that device.
#ifndef FSDP_FSDP_GRADIENT_KERNELS_H_
#define FSDP_FSDP_GRADIENT_KERNELS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

struct LocatedGradient {
  Tensor grad;
  Device* device = nullptr;  // whose memory it is in; never null
};

// The gradients that `parameters` have on this rank.
std::vector<LocatedGradient> GradientsOf(absl::Span<ShardedParameter* const> parameters);

// Multiplies every gradient by `factor`, after the work that `stream` has. Blocks until it is done.
absl::Status ScaleGradients(absl::Span<const LocatedGradient> gradients, float factor, Stream& stream);

// One float32 on the device of `stream`: above 0, in the order of `stream`, if an element of a gradient is infinite or
// NaN as `stream` leaves it, else 0. Blocks only if some gradient is on another device.
absl::StatusOr<Tensor> FindNotFinite(absl::Span<const LocatedGradient> gradients, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_FSDP_GRADIENT_KERNELS_H_
