// SPDX-License-Identifier: Apache-2.0
#include "nn/device_layer_ops.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nn/checked_layer_ops.h"
#include "nn/host_layer_ops.h"
#include "tensor/host_device.h"

namespace fsdp {
namespace {

using Create = std::unique_ptr<const LayerOps> (*)(const Device& device);

// Written before main, read after.
std::map<DeviceType, Create>& Registered() {
  static auto* const registered = new std::map<DeviceType, Create>;
  return *registered;
}

std::shared_ptr<const LayerOps> Checked(std::unique_ptr<const LayerOps> ops) {
  return std::make_shared<CheckedLayerOps>(std::move(ops));
}

}  // namespace

std::shared_ptr<const LayerOps> CreateHostLayerOps(int kernel_threads) {
  return Checked(std::make_unique<HostLayerOps>(kernel_threads));
}

absl::StatusOr<std::shared_ptr<const LayerOps>> LayerOpsFor(const Device& device) {
  if (device.type() == DeviceType::kCpu) return CreateHostLayerOps(KernelThreads(device));
  const auto registered = Registered().find(device.type());
  if (registered != Registered().end()) return Checked(registered->second(device));
  return absl::UnimplementedError(absl::StrCat("no layer kernels for device ", device.name(),
                                               ": the program was linked without //nn:cuda_layer_ops"));
}

bool RegisterLayerOps(DeviceType type, Create create) {
  Registered()[type] = create;
  return true;
}

}  // namespace fsdp
