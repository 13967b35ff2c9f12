// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/device_layer_ops.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/nn/host/host_layer_ops.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {

std::shared_ptr<const LayerOps> CreateHostLayerOps(int kernel_threads) { return NewHostLayerOps(kernel_threads); }

// The host's kernels are linked into every program. Others are found by the registry, so that nn/ does not need CUDA,
// and a program without GPU kernels still builds and reports at run time that it lacks them.
absl::StatusOr<std::shared_ptr<const LayerOps>> LayerOpsFor(const Device& device) {
  if (device.type() == DeviceType::kCpu) return CreateHostLayerOps(KernelThreads(device));
  if (const LayerOpsFactory create = RegisteredLayerOps(device.type())) return create(device);
  return absl::UnimplementedError(
      absl::StrCat("no layer kernels for device ", device.name(), ": the program does not link //optim:cuda_kernels"));
}

}  // namespace fsdp
