// SPDX-License-Identifier: Apache-2.0
//
// The CUDA device: memory, copies, and the order of streams, events and host work. Tests hold work back by futures,
// never by sleeping.

#include "fsdp/cuda/cuda_device.h"

#include <atomic>
#include <barrier>
#include <cstring>
#include <deque>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/stream_hold_testutil.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/tensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

// Work that blocks its stream until Open.
class Gate {
 public:
  std::function<absl::Status()> Work() {
    return [opened = opened_] {
      opened.wait();
      return absl::OkStatus();
    };
  }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<Device>> device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status();
    device_ = *device;
  }

  std::unique_ptr<Stream> NewStream(std::string name) {
    absl::StatusOr<std::unique_ptr<Stream>> stream = device_->CreateStream(std::move(name));
    EXPECT_OK(stream);
    return *std::move(stream);
  }

  Buffer NewBuffer(int64_t nbytes) {
    absl::StatusOr<Buffer> buffer = device_->Allocate(nbytes);
    EXPECT_OK(buffer);
    return *std::move(buffer);
  }

  // A large piece of GPU memory full of `value`, put on `stream`: work that takes the GPU a while.
  void Fill(Stream& stream, const Tensor& t, float value) {
    values_.push_back(value);
    stream.CopyAsync(t.data(), &values_.back(), sizeof(value));
    int64_t filled = 1;
    while (filled < t.numel()) {
      const int64_t n = std::min(filled, t.numel() - filled);
      stream.CopyAsync(t.Slice({filled, filled + n}).data(), t.data(), n * sizeof(float));
      filled += n;
    }
  }

  std::vector<float> Read(Stream& stream, const Tensor& t) {
    std::vector<float> values(t.numel());
    stream.CopyAsync(values.data(), t.data(), t.nbytes());
    EXPECT_OK(stream.Synchronize());
    return values;
  }

  std::shared_ptr<Device> device_;
  std::deque<float> values_;  // Fill's, which must live until they have been copied
};

constexpr int64_t kMany = (4 << 20) + 3;

TEST_F(CudaDeviceTest, KnowsItsTypeAndName) {
  EXPECT_EQ(device_->type(), DeviceType::kCuda);
  EXPECT_EQ(device_->name(), "cuda:0");
  const auto stream = NewStream("unshard");
  EXPECT_EQ(stream->name(), "unshard");
  EXPECT_EQ(&stream->device(), device_.get());
}

TEST_F(CudaDeviceTest, AGpuThatIsNotThereIsNamed) {
  EXPECT_THAT(CreateCudaDevice(1000),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cuda:1000: this process")));
  EXPECT_THAT(CreateCudaDevice(-1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cuda:-1")));
}

TEST_F(CudaDeviceTest, CountsLiveBytesExactly) {
  {
    const Buffer a = NewBuffer(1000);
    const Buffer b = NewBuffer(24);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0u);
    EXPECT_EQ(device_->allocated_bytes(), 1024);
    device_->RecordAllocation(100);
  }
  EXPECT_EQ(device_->allocated_bytes(), 100);
  EXPECT_EQ(device_->peak_allocated_bytes(), 1124);
  device_->ResetPeak();
  EXPECT_EQ(device_->peak_allocated_bytes(), 100);
}

TEST_F(CudaDeviceTest, NoBytesAreLegalAndNotNull) { EXPECT_TRUE(NewBuffer(0)); }

TEST_F(CudaDeviceTest, TooManyBytesNameTheDeviceAndTheAmounts) {
  const Buffer used = NewBuffer(12345);
  EXPECT_THAT(device_->Allocate(int64_t{1} << 45),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("cuda:0: cannot allocate 35184372088832 bytes; 12345 bytes are in use")));
  EXPECT_THAT(device_->Allocate(-1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1 bytes")));
  EXPECT_OK(NewStream("s")->Synchronize());  // the device still works
}

TEST_F(CudaDeviceTest, PinnedMemoryIsReusedAndNotCounted) {
  ASSERT_OK_AND_ASSIGN(Buffer a, device_->AllocatePinned(5000));
  std::memset(a.data(), 1, 5000);
  const void* address = a.data();
  EXPECT_EQ(device_->allocated_bytes(), 0);
  a = Buffer();
  ASSERT_OK_AND_ASSIGN(const Buffer b, device_->AllocatePinned(6000));
  EXPECT_EQ(b.data(), address);
}

TEST_F(CudaDeviceTest, CopiesThereAcrossAndBack) {
  const auto stream = NewStream("s");
  ASSERT_OK_AND_ASSIGN(const Tensor a, Tensor::Empty(*device_, DType::kFloat32, {kMany}));
  ASSERT_OK_AND_ASSIGN(const Tensor b, Tensor::Empty(*device_, DType::kFloat32, {kMany}));
  std::vector<float> values(kMany);
  std::iota(values.begin(), values.end(), 0.0f);
  stream->CopyAsync(a.data(), values.data(), a.nbytes());
  stream->CopyAsync(b.data(), a.data(), a.nbytes());
  EXPECT_EQ(Read(*stream, b), values);
}

TEST_F(CudaDeviceTest, HostWorkSeesWhatCameBeforeAndIsSeenByWhatComesAfter) {
  const auto stream = NewStream("s");
  ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kFloat32, {kMany}));
  ASSERT_OK_AND_ASSIGN(const Buffer pinned, device_->AllocatePinned(t.nbytes()));
  auto* values = reinterpret_cast<float*>(pinned.data());
  Fill(*stream, t, 3);
  for (int round = 0; round < 3; ++round) {
    stream->CopyAsync(values, t.data(), t.nbytes());
    stream->Run([values] {
      for (int64_t i = 0; i < kMany; ++i) values[i] += 1;
      return absl::OkStatus();
    });
    stream->CopyAsync(t.data(), values, t.nbytes());
  }
  EXPECT_EQ(Read(*stream, t), std::vector<float>(kMany, 6));
}

TEST_F(CudaDeviceTest, ErrorsSkipTheRestOfTheStream) {
  const auto stream = NewStream("reduce");
  ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kFloat32, {5}));
  Fill(*stream, t, 1);
  stream->Run([] { return absl::DataLossError("torn"); });
  device_->ops().Zero(t, *stream);
  bool ran = false;
  stream->Run([&ran] {
    ran = true;
    return absl::InternalError("later");
  });
  absl::Status seen;
  stream->RunAlways([&seen](const absl::Status& so_far) { return seen = so_far; });
  const auto first = StatusIs(absl::StatusCode::kDataLoss, "stream \"reduce\": torn");
  EXPECT_THAT(stream->Synchronize(), first);
  EXPECT_THAT(seen, first);
  EXPECT_FALSE(ran);
  EXPECT_THAT(stream->Synchronize(), first);
  const auto other = NewStream("other");
  EXPECT_THAT(Read(*other, t), testing::Each(1.0f));
}

TEST_F(CudaDeviceTest, ErrorsOfCudaNameTheStreamTheDeviceAndTheCall) {
  const auto stream = NewStream("s");
  const Buffer buffer = NewBuffer(16);
  stream->CopyAsync(buffer.data(), nullptr, 16);
  EXPECT_THAT(stream->Synchronize(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("stream \"s\": cuda:0: cudaMemcpyAsync: ")));
  EXPECT_OK(NewStream("another")->Synchronize());
}

TEST_F(CudaDeviceTest, EventsOrderStreamsAndCarryErrors) {
  const auto producer = NewStream("producer");
  const auto consumer = NewStream("consumer");
  ASSERT_OK_AND_ASSIGN(const Tensor a, Tensor::Empty(*device_, DType::kFloat32, {kMany}));
  ASSERT_OK_AND_ASSIGN(const Tensor b, Tensor::Empty(*device_, DType::kFloat32, {kMany}));
  for (const bool behind_host_work : {false, true}) {
    const float value = behind_host_work ? 2 : 1;
    Gate gate;
    if (behind_host_work) producer->Run(gate.Work());
    Fill(*producer, a, value);
    const Event filled = producer->Record();
    consumer->Wait(filled);
    consumer->CopyAsync(b.data(), a.data(), a.nbytes());
    if (behind_host_work) {
      EXPECT_FALSE(filled.Query());
      gate.Open();
    }
    EXPECT_EQ(Read(*consumer, b), std::vector<float>(kMany, value));
    EXPECT_TRUE(filled.Query());
    EXPECT_OK(filled.Synchronize());
  }
  producer->Run([] { return absl::AbortedError("gone"); });
  const Event failed = producer->Record();
  consumer->Wait(failed);
  const auto gone = StatusIs(absl::StatusCode::kAborted, "stream \"producer\": gone");
  EXPECT_THAT(failed.Synchronize(), gone);
  EXPECT_THAT(consumer->Synchronize(), gone);
}

TEST_F(CudaDeviceTest, WaitsForTheHostAndTheHostForIt) {
  const std::shared_ptr<Device> host = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> host_stream, host->CreateStream("host"));
  const auto stream = NewStream("s");
  ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kFloat32, {3}));
  std::vector<float> values(3, 0);
  Gate gate;
  host_stream->Run(gate.Work());
  host_stream->Run([&values] {
    values.assign(3, 7);
    return absl::OkStatus();
  });
  stream->Wait(host_stream->Record());
  stream->CopyAsync(t.data(), values.data(), t.nbytes());
  std::vector<float> back(3, 0);
  stream->CopyAsync(back.data(), t.data(), t.nbytes());
  host_stream->Wait(stream->Record());
  std::vector<float> seen;
  host_stream->Run([&back, &seen] {
    seen = back;
    return absl::OkStatus();
  });
  gate.Open();
  EXPECT_OK(host_stream->Synchronize());
  EXPECT_EQ(seen, std::vector<float>(3, 7));
}

// Work that has not been issued, because it is behind host work, and work that the GPU has not reached.
TEST_F(CudaDeviceTest, BuffersLiveUntilTheirWorkRan) {
  const auto stream = NewStream("s");
  for (const bool behind_host_work : {false, true}) {
    Gate gate;
    StreamHold hold;
    behind_host_work ? stream->Run(gate.Work()) : hold.Stop(*stream);
    {
      ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kFloat32, {kMany}));
      for (int i = 0; i < 200; ++i) device_->ops().Zero(t, *stream);
    }
    EXPECT_EQ(device_->allocated_bytes(), kMany * 4);
    behind_host_work ? gate.Open() : hold.Release();
    EXPECT_OK(stream->Synchronize());
    EXPECT_EQ(device_->allocated_bytes(), 0);
  }
}

// Protects against host work that blocks the GPU's own queues: more streams than queues, all meeting in host work.
TEST_F(CudaDeviceTest, ManyRanksMayMeetInHostWork) {
  constexpr int kRanks = 24;
  constexpr int kRounds = 20;
  std::barrier barrier(kRanks);
  std::vector<std::thread> ranks;
  std::atomic<int> ok = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&] {
      absl::StatusOr<std::shared_ptr<Device>> device = CreateCudaDevice(0);
      ASSERT_OK(device);
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, (*device)->CreateStream("s"));
      ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(**device, DType::kFloat32, {1000}));
      for (int round = 0; round < kRounds; ++round) {
        (*device)->ops().Zero(t, *stream);
        stream->Run([&barrier] {
          barrier.arrive_and_wait();
          return absl::OkStatus();
        });
      }
      EXPECT_OK(stream->Synchronize());
      ++ok;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(ok, kRanks);
}

}  // namespace
}  // namespace fsdp
