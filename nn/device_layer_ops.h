// SPDX-License-Identifier: Apache-2.0
//
// Which LayerOps a device has.
#ifndef FSDP_NN_DEVICE_LAYER_OPS_H_
#define FSDP_NN_DEVICE_LAYER_OPS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "nn/layer_ops.h"
#include "tensor/device.h"

namespace fsdp {

// The host's kernels: oneDNN matrix products, vectorised loops. `kernel_threads` as in HostDeviceOptions. Keep one for
// many steps: it keeps what oneDNN compiled.
std::shared_ptr<const LayerOps> CreateHostLayerOps(int kernel_threads);

// The kernels of `device`; kUnimplemented for a device without any.
absl::StatusOr<std::shared_ptr<const LayerOps>> LayerOpsFor(const Device& device);

}  // namespace fsdp

#endif  // FSDP_NN_DEVICE_LAYER_OPS_H_
