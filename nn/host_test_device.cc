// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/device_testutil.h"
#include "fsdp/tensor/each_target.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {

const std::shared_ptr<Device>& TestDevice() {
  static const auto* const device = new std::shared_ptr<Device>(CreateHostDevice());
  return *device;
}

std::vector<DType> ActivationDTypes() { return {DType::kFloat32, DType::kBFloat16, DType::kFloat16}; }

void ForEachInstructionSet(const std::function<void()>& body) { ForEachTarget(body); }

}  // namespace fsdp
