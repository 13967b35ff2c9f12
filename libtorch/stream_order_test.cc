// SPDX-License-Identifier: Apache-2.0
//
// Without a GPU. Our stream and two of "LibTorch's" are streams of the CUDA emulator. A guard registered with c10 for
// its spare device type shows one of the two as the current one, as LibTorch's guard for CUDA does. A gate holds work
// back.
#include "fsdp/libtorch/stream_order.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

cudaStream_t NewStream() {
  cudaStream_t made = nullptr;
  cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  return made;
}

cudaStream_t TheirStream() {
  static const cudaStream_t stream = NewStream();
  return stream;
}

cudaStream_t TheirOtherStream() {
  static const cudaStream_t stream = NewStream();
  return stream;
}

bool other_is_current = false;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, other_is_current ? 1 : 0);
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return stream.id() == 1 ? TheirOtherStream() : TheirStream();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    cudaStreamSynchronize(static_cast<cudaStream_t>(getStreamNativeHandle(stream)));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// One piece of work on a stream: waits for the gate, if there is one, then records its name.
struct Step {
  std::shared_future<void> gate;
  char name;
  std::vector<char>* done;
};

void RunStep(void* argument) {
  const std::unique_ptr<Step> step(static_cast<Step*>(argument));
  if (step->gate.valid()) step->gate.wait();
  step->done->push_back(step->name);
}

absl::Status Put(cudaStream_t stream, std::shared_future<void> gate, char name, std::vector<char>& done) {
  const cudaError_t put = cudaLaunchHostFunc(stream, RunStep, new Step{std::move(gate), name, &done});
  return put == cudaSuccess ? absl::OkStatus() : absl::InternalError(cudaGetErrorString(put));
}

void PutOurs(Stream& ours, std::shared_future<void> gate, char name, std::vector<char>& done) {
  CudaStream::Of(ours).Issue(
      {}, [gate = std::move(gate), name, &done](CUstream_st* stream) { return Put(stream, gate, name, done); });
}

class StreamOrderTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = CreateCudaDevice(0);
    ASSERT_OK(device.status());
    device_ = *device;
    auto stream = device_->CreateStream("ours");
    ASSERT_OK(stream.status());
    ours_ = *std::move(stream);
    other_is_current = false;
  }

  // Both of LibTorch's streams.
  TorchStreams JoinedByBoth() {
    TorchStreams streams(*ours_, torch_device_);
    for (const bool other : {true, false}) {
      other_is_current = other;
      EXPECT_OK(streams.Join());
    }
    return streams;
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> ours_;
  const c10::Device torch_device_ = c10::Device(kType, 0);
  std::vector<char> done_;
  std::promise<void> gate_;
};

TEST_F(StreamOrderTest, LibTorchsStreamRunsAfterOursAndTheHostGoesOn) {
  PutOurs(*ours_, gate_.get_future().share(), 'a', done_);
  ASSERT_OK(TorchStreams(*ours_, torch_device_).LibTorchAfter());
  ASSERT_OK(Put(TheirStream(), {}, 'b', done_));
  EXPECT_EQ(cudaStreamQuery(TheirStream()), cudaErrorNotReady);  // the calls above came back before 'a'
  gate_.set_value();
  EXPECT_EQ(cudaStreamSynchronize(TheirStream()), cudaSuccess);
  EXPECT_THAT(done_, testing::ElementsAre('a', 'b'));
}

TEST_F(StreamOrderTest, OurStreamRunsAfterLibTorchsAndTheHostGoesOn) {
  ASSERT_OK(Put(TheirStream(), gate_.get_future().share(), 'a', done_));
  ASSERT_OK(AfterLibTorch(*ours_, torch_device_));
  PutOurs(*ours_, {}, 'b', done_);
  EXPECT_FALSE(ours_->Record().Query());
  gate_.set_value();
  ASSERT_OK(ours_->Synchronize());
  EXPECT_THAT(done_, testing::ElementsAre('a', 'b'));
}

TEST_F(StreamOrderTest, AwaitingLibTorchBlocksUntilItsCurrentStreamIsDone) {
  ASSERT_OK(Put(TheirStream(), {}, 'a', done_));
  ASSERT_OK(AwaitLibTorch(torch_device_));
  EXPECT_THAT(done_, testing::ElementsAre('a'));
  std::thread opens([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate_.set_value();
  });
  ASSERT_OK(Put(TheirStream(), gate_.get_future().share(), 'b', done_));
  EXPECT_OK(AwaitLibTorch(torch_device_));
  EXPECT_EQ(cudaStreamQuery(TheirStream()), cudaSuccess);
  opens.join();
}

TEST_F(StreamOrderTest, OurStreamRunsAfterEachOfLibTorchsThatJoined) {
  for (const cudaStream_t theirs : {TheirStream(), TheirOtherStream()}) {
    std::promise<void> gate;
    TorchStreams streams = JoinedByBoth();
    done_.clear();
    ASSERT_OK(Put(theirs, gate.get_future().share(), 'a', done_));
    ASSERT_OK(streams.AfterLibTorch());
    PutOurs(*ours_, {}, 'b', done_);
    EXPECT_FALSE(ours_->Record().Query());
    gate.set_value();
    ASSERT_OK(ours_->Synchronize());
    EXPECT_THAT(done_, testing::ElementsAre('a', 'b'));
  }
}

TEST_F(StreamOrderTest, EachOfLibTorchsStreamsThatJoinedRunsAfterOurs) {
  for (const cudaStream_t theirs : {TheirStream(), TheirOtherStream()}) {
    std::promise<void> gate;
    TorchStreams streams = JoinedByBoth();
    done_.clear();
    PutOurs(*ours_, gate.get_future().share(), 'a', done_);
    ASSERT_OK(streams.LibTorchAfter());
    ASSERT_OK(Put(theirs, {}, 'b', done_));
    EXPECT_EQ(cudaStreamQuery(theirs), cudaErrorNotReady);
    gate.set_value();
    EXPECT_EQ(cudaStreamSynchronize(theirs), cudaSuccess);
    EXPECT_THAT(done_, testing::ElementsAre('a', 'b'));
  }
}

TEST_F(StreamOrderTest, AStreamThatJoinsRunsAfterOursAndOneThatHadIsNotHeldUp) {
  TorchStreams streams(*ours_, torch_device_);
  ASSERT_OK(streams.Join());
  std::vector<char> other_done;
  PutOurs(*ours_, gate_.get_future().share(), 'a', done_);
  ASSERT_OK(streams.Join());
  other_is_current = true;
  ASSERT_OK(streams.Join());
  ASSERT_OK(Put(TheirStream(), {}, 'b', other_done));
  ASSERT_OK(Put(TheirOtherStream(), {}, 'c', done_));
  EXPECT_EQ(cudaStreamSynchronize(TheirStream()), cudaSuccess);
  EXPECT_THAT(other_done, testing::ElementsAre('b'));
  EXPECT_EQ(cudaStreamQuery(TheirOtherStream()), cudaErrorNotReady);
  gate_.set_value();
  EXPECT_EQ(cudaStreamSynchronize(TheirOtherStream()), cudaSuccess);
  EXPECT_THAT(done_, testing::ElementsAre('a', 'c'));
}

TEST_F(StreamOrderTest, ClearLeavesTheCurrentStreamAlone) {
  TorchStreams streams = JoinedByBoth();  // the current one is not the other
  streams.Clear();
  std::vector<char> other_done;
  ASSERT_OK(Put(TheirOtherStream(), gate_.get_future().share(), 'a', other_done));
  ASSERT_OK(Put(TheirStream(), {}, 'b', done_));
  ASSERT_OK(streams.AfterLibTorch());
  PutOurs(*ours_, {}, 'c', done_);
  ASSERT_OK(ours_->Synchronize());
  EXPECT_THAT(done_, testing::ElementsAre('b', 'c'));
  gate_.set_value();
  EXPECT_EQ(cudaStreamSynchronize(TheirOtherStream()), cudaSuccess);
}

TEST_F(StreamOrderTest, OnTheHostOurStreamIsWaitedForAndLibTorchHasNone) {
  const std::shared_ptr<Device> host = CreateHostDevice();
  auto stream = host->CreateStream("ours");
  ASSERT_OK(stream.status());
  (*stream)->Run([this] {
    done_.push_back('a');
    return absl::OkStatus();
  });
  TorchStreams streams(**stream, c10::Device(c10::kCPU));
  ASSERT_OK(streams.LibTorchAfter());
  EXPECT_THAT(done_, testing::ElementsAre('a'));
  EXPECT_OK(AfterLibTorch(**stream, c10::Device(c10::kCPU)));
  EXPECT_OK(AwaitLibTorch(c10::Device(c10::kCPU)));
  (*stream)->Run([] { return absl::DataLossError("of ours"); });
  EXPECT_THAT(streams.LibTorchAfter().message(), testing::HasSubstr("of ours"));
}

TEST_F(StreamOrderTest, ADeviceTypeThatLibTorchLacksIsNamed) {
  const c10::Device lacking(c10::DeviceType::FPGA, 0);
  TorchStreams streams(*ours_, lacking);
  for (const absl::Status& status : {AfterLibTorch(*ours_, lacking), AwaitLibTorch(lacking), streams.Join(),
                                     streams.LibTorchAfter(), streams.AfterLibTorch()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("fpga")));
  }
}

}  // namespace
}  // namespace fsdp
