// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/host/host_layer_ops.h"

#include <memory>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The messages are tested for every device in nn/layer_ops_errors_test.cc.
TEST(HostLayerOpsTest, OperandsAreCheckedWhoeverMadeTheObject) {
  const std::shared_ptr<Device> device = TestDevice();
  const std::unique_ptr<Stream> stream = *device->CreateStream("test");
  const Tensor three = TestTensor(DType::kFloat32, {3}, {1, 2, 3}), four = TestTensor(DType::kFloat32, {4}, Doubles(4));
  NewHostLayerOps(/*kernel_threads=*/1)->Add(three, four, three, *stream);
  EXPECT_THAT(stream->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("add: b [4], wanted 3 elements")));
}

}  // namespace
}  // namespace fsdp
