// SPDX-License-Identifier: Apache-2.0
//
// Which LayerOps a device has. The host's are always there; those of another kind of device come with the library that
// holds them, once a program links it: //nn/cuda:cuda_layer_ops.
#ifndef FSDP_NN_DEVICE_LAYER_OPS_H_
#define FSDP_NN_DEVICE_LAYER_OPS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// The host's kernels: oneDNN matrix products, vectorised loops. `kernel_threads` as in HostDeviceOptions. Keep one for
// many steps: it keeps what oneDNN compiled.
std::shared_ptr<const LayerOps> CreateHostLayerOps(int kernel_threads);

// The kernels of `device`; kUnimplemented for a device of which the program has none. They check their operands.
absl::StatusOr<std::shared_ptr<const LayerOps>> LayerOpsFor(const Device& device);

}  // namespace fsdp

#endif  // FSDP_NN_DEVICE_LAYER_OPS_H_
