// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/tensor_bridge.h"

#include "fsdp/base/status_matchers.h"
#include "fsdp/libtorch/slot_storage.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// A tensor over host memory that claims to be on `device`, which need not exist.
at::Tensor TensorOn(c10::Device device, float (&values)[4]) {
  const auto storage = c10::make_intrusive<SlotStorage>(nullptr, 0, sizeof(values), device);
  storage->Bind(values, sizeof(values));
  return SlotStorage::NewTensor(storage, at::kFloat, {4});
}

TEST(ViewOfTest, HasTheMemoryAndTheDeviceOfTheTensor) {
  float values[4] = {};
  const std::pair<c10::Device, DeviceId> devices[] = {{at::kCPU, {}},
                                                      {c10::Device(c10::kCUDA, 0), {DeviceType::kCuda, 0}},
                                                      {c10::Device(c10::kCUDA, 3), {DeviceType::kCuda, 3}}};
  for (const auto& [torch, ours] : devices) {
    const absl::StatusOr<Tensor> view = ViewOf(TensorOn(torch, values));
    ASSERT_OK(view.status());
    EXPECT_EQ(view->data(), values);
    EXPECT_TRUE(view->device() == ours) << DeviceName(view->device());
  }
}

TEST(ViewOfTest, ADeviceThatWeHaveNotIsNamed) {
  float values[4] = {};
  EXPECT_THAT(
      ViewOf(TensorOn(c10::Device(c10::kXPU, 1), values)).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("on xpu:1: expected one on cpu or cuda")));
}

}  // namespace
}  // namespace fsdp
