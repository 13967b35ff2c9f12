// SPDX-License-Identifier: Apache-2.0
#include "nn/device_layer_ops.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nn/host_layer_ops.h"
#include "tensor/host_device.h"

namespace fsdp {

std::shared_ptr<const LayerOps> CreateHostLayerOps(int kernel_threads) {
  return std::make_shared<HostLayerOps>(kernel_threads);
}

absl::StatusOr<std::shared_ptr<const LayerOps>> LayerOpsFor(const Device& device) {
  if (device.type() == DeviceType::kCpu) return CreateHostLayerOps(KernelThreads(device));
  return absl::UnimplementedError(absl::StrCat("no layer kernels for device ", device.name()));
}

}  // namespace fsdp
