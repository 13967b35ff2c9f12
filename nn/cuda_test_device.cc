// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/check.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/nn/device_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

const absl::StatusOr<std::shared_ptr<Device>>& CudaDevice() {
  static const auto* const device = new absl::StatusOr<std::shared_ptr<Device>>(CreateCudaDevice(0));
  return *device;
}

class SkipWithoutGpu : public testing::Environment {
  void SetUp() override {
    if (!CudaDevice().ok()) GTEST_SKIP() << CudaDevice().status();
  }
};

[[maybe_unused]] const testing::Environment* const environment = testing::AddGlobalTestEnvironment(new SkipWithoutGpu);

}  // namespace

const std::shared_ptr<Device>& TestDevice() {
  Check(CudaDevice().ok(), "a test without a GPU was not skipped");
  return *CudaDevice();
}

std::vector<DType> ActivationDTypes() { return {DType::kFloat32, DType::kBFloat16, DType::kFloat16}; }

void ForEachInstructionSet(const std::function<void()>& body) { body(); }

}  // namespace fsdp
