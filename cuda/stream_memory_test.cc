// SPDX-License-Identifier: Apache-2.0
//
// Memory in the order of a stream: it is reused before its work has run, without effect on results. Under
// ThreadSanitizer the emulator finds a use that comes too early.
#include <future>
#include <memory>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/cuda/stream_hold_testutil.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/ordered_memory.h"
#include "fsdp/tensor/tensor.h"
#include "fsdp/tensor/work_graph.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kNumel = 10007;
constexpr int64_t kBytes = kNumel * static_cast<int64_t>(sizeof(float));

class StreamMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<Device>> device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status();
    device_ = *device;
    ASSERT_OK_AND_ASSIGN(compute_, device_->CreateStream("compute"));
    ASSERT_OK_AND_ASSIGN(other_, device_->CreateStream("other"));
    ASSERT_OK_AND_ASSIGN(ones_, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
    const std::vector<float> ones(kNumel, 1);
    compute_->CopyAsync(ones_.data(), ones.data(), kBytes);
    ASSERT_OK(compute_->Synchronize());
    device_->ResetPeak();
    before_ = device_->allocated_bytes();
  }

  Tensor InOrder() {
    absl::StatusOr<Buffer> buffer = OrderedMemoryOf(*compute_)->AllocateInOrder(kBytes);
    EXPECT_OK(buffer);
    return Tensor(*std::move(buffer), DType::kFloat32, {kNumel});
  }

  std::vector<float> Read(const Tensor& t, Stream& stream) {
    std::vector<float> values(t.numel());
    stream.CopyAsync(values.data(), t.data(), t.nbytes());
    EXPECT_OK(stream.Synchronize());
    return values;
  }

  // Expects the tensors to be full of 1, 2, 4, ...
  void ExpectPowers(const std::vector<Tensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::vector<float> values = Read(tensors[i], *compute_);
      EXPECT_EQ(values.front(), static_cast<float>(1 << i));
      EXPECT_EQ(values.back(), static_cast<float>(1 << i));
    }
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> compute_, other_;
  Tensor ones_;
  int64_t before_ = 0;
};

TEST_F(StreamMemoryTest, TheHostHoldsOneBlockHoweverFarItRunsAhead) {
  const TensorOps& ops = device_->ops();
  ASSERT_OK_AND_ASSIGN(const Tensor sum, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
  ops.Zero(sum, *compute_);
  for (int i = 0; i < 300; ++i) {
    const Tensor t = InOrder();
    ops.CastDivide(ones_, t, 1, *compute_);
    ops.Accumulate(t, sum, *compute_);
  }
  EXPECT_EQ(device_->allocated_bytes(), before_ + kBytes);
  EXPECT_EQ(device_->peak_allocated_bytes(), before_ + 2 * kBytes);
  EXPECT_EQ(Read(sum, *compute_), std::vector<float>(kNumel, 300));
}

// The other stream reaches its work long after the host has dropped the memory and put more work on the first.
TEST_F(StreamMemoryTest, WorkOnAnotherStreamKeepsTheMemory) {
  const TensorOps& ops = device_->ops();
  std::promise<void> open;
  other_->Run([opened = open.get_future().share()] {
    opened.wait();
    return absl::OkStatus();
  });
  std::vector<Tensor> copies;
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK_AND_ASSIGN(copies.emplace_back(), Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
    const Tensor t = InOrder();
    ops.CastDivide(ones_, t, 1.0 / (1 << i), *compute_);
    other_->Wait(compute_->Record());
    ops.CastDivide(t, copies.back(), 1, *other_);
  }
  for (int i = 0; i < 20; ++i) device_->ops().Zero(InOrder(), *compute_);
  open.set_value();
  ASSERT_OK(other_->Synchronize());
  ExpectPowers(copies);
  EXPECT_EQ(device_->allocated_bytes(), before_ + 20 * kBytes);
}

// As above, and the other stream's work has been issued: only its end on the GPU releases the memory.
TEST_F(StreamMemoryTest, IssuedWorkOnAnotherStreamKeepsTheMemoryUntilItHasRun) {
  const TensorOps& ops = device_->ops();
  ASSERT_OK_AND_ASSIGN(const Tensor copy, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
  StreamHold hold;
  {
    const Tensor t = InOrder();
    ops.CastDivide(ones_, t, 0.5, *compute_);
    other_->Wait(compute_->Record());
    hold.Stop(*other_);
    ops.CastDivide(t, copy, 1, *other_);
  }
  ops.Zero(InOrder(), *compute_);
  ASSERT_OK(compute_->Synchronize());
  EXPECT_EQ(device_->allocated_bytes(), before_ + 2 * kBytes);
  hold.Release();
  EXPECT_EQ(Read(copy, *other_), std::vector<float>(kNumel, 2));
  EXPECT_EQ(device_->allocated_bytes(), before_ + kBytes);
}

// The host has dropped it, and the stream has not.
TEST_F(StreamMemoryTest, MemoryIsForNoOtherStreamBeforeTheWorkThatUsesItHasRun) {
  const TensorOps& ops = device_->ops();
  StreamHold hold;
  hold.Stop(*compute_);
  Tensor t = InOrder();
  const void* const address = t.data();
  ops.CastDivide(ones_, t, 0.5, *compute_);
  ops.Accumulate(t, ones_, *compute_);
  t = Tensor();
  ASSERT_OK_AND_ASSIGN(const Tensor others, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
  EXPECT_NE(others.data(), address);
  ops.Zero(others, *other_);
  ASSERT_OK(other_->Synchronize());
  hold.Release();
  EXPECT_EQ(Read(ones_, *compute_), std::vector<float>(kNumel, 3));
}

// The stream's thread issues work that is deferred behind host work, and drops its memory.
TEST_F(StreamMemoryTest, WorkBehindHostWorkKeepsTheMemoryUntilItIsIssued) {
  const TensorOps& ops = device_->ops();
  std::promise<void> open;
  compute_->Run([opened = open.get_future().share()] {
    opened.wait();
    return absl::OkStatus();
  });
  std::vector<Tensor> copies;
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK_AND_ASSIGN(copies.emplace_back(), Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
    const Tensor t = InOrder();
    ops.CastDivide(ones_, t, 1.0 / (1 << i), *compute_);
    ops.CastDivide(t, copies.back(), 1, *compute_);
  }
  EXPECT_EQ(device_->allocated_bytes(), before_ + 40 * kBytes);
  open.set_value();
  ASSERT_OK(compute_->Synchronize());
  ExpectPowers(copies);
  EXPECT_EQ(device_->allocated_bytes(), before_ + 20 * kBytes);
}

TEST_F(StreamMemoryTest, ItMayOutliveItsStream) {
  Tensor t = InOrder();
  device_->ops().CastDivide(ones_, t, 0.5, *compute_);
  compute_.reset();
  EXPECT_EQ(Read(t, *other_), std::vector<float>(kNumel, 2));
  t = Tensor();
  EXPECT_EQ(device_->allocated_bytes(), before_);
}

// The free would otherwise be captured, or refused.
TEST_F(StreamMemoryTest, ItMayBeDroppedWhileItsStreamIsCaptured) {
  const TensorOps& ops = device_->ops();
  Tensor dropped = InOrder();
  ops.CastDivide(ones_, dropped, 0.5, *compute_);
  Tensor used = InOrder();
  ops.CastDivide(ones_, used, 0.25, *compute_);
  ASSERT_OK_AND_ASSIGN(const Tensor sum, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
  ops.Zero(sum, *compute_);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<WorkGraph> graph, CaptureWork(*compute_, [&] {
                         dropped = Tensor();
                         ops.Accumulate(used, sum, *compute_);
                         used = Tensor();  // from now on held only by the graph
                         return absl::OkStatus();
                       }));
  EXPECT_EQ(device_->allocated_bytes(), before_ + 2 * kBytes);
  graph->Replay();
  ops.Zero(InOrder(), *compute_);
  graph->Replay();
  EXPECT_EQ(Read(sum, *compute_), std::vector<float>(kNumel, 8));
}

TEST_F(StreamMemoryTest, TooMuchNamesTheDeviceAndTheAmounts) {
  EXPECT_THAT(OrderedMemoryOf(*compute_)->AllocateInOrder(int64_t{1} << 50).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr("cuda:0: cannot allocate")));
  EXPECT_THAT(OrderedMemoryOf(*compute_)->AllocateInOrder(-1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("cannot allocate -1 bytes")));
}

TEST(HostStreamMemoryTest, TheHostHasNone) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, CreateHostDevice()->CreateStream("compute"));
  EXPECT_EQ(OrderedMemoryOf(*stream), nullptr);
}

}  // namespace
}  // namespace fsdp
