// SPDX-License-Identifier: Apache-2.0
//
// Which LayerOps a device has. The host's kernels are always available. The kernels of a CUDA device are a library that
// a program must link: //nn/cuda:cuda_layer_ops, which //optim:cuda_kernels, the label for programs, brings along.
#ifndef FSDP_NN_DEVICE_LAYER_OPS_H_
#define FSDP_NN_DEVICE_LAYER_OPS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// The host's kernels: oneDNN matrix products, vectorised loops. `kernel_threads` as in HostDeviceOptions. Keep one
// object for many steps: it keeps the primitives that oneDNN compiled for each shape.
std::shared_ptr<const LayerOps> CreateHostLayerOps(int kernel_threads);

// The kernels of `device`; kUnimplemented if the program has no kernels for the device.
absl::StatusOr<std::shared_ptr<const LayerOps>> LayerOpsFor(const Device& device);

}  // namespace fsdp

#endif  // FSDP_NN_DEVICE_LAYER_OPS_H_
