// SPDX-License-Identifier: Apache-2.0
//
// Work that is captured and replayed, compared with the same work put on the streams each time.
#include "fsdp/cuda/cuda_graph.h"

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/cuda/stream_hold_testutil.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/stream_priority.h"
#include "fsdp/tensor/tensor.h"
#include "fsdp/tensor/work_graph.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNumel = 1003;

class CudaGraphTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<Device>> device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status();
    device_ = *device;
    ASSERT_OK_AND_ASSIGN(compute_, device_->CreateStream("compute"));
    ASSERT_OK_AND_ASSIGN(other_, CreateUrgentStream(*device_, "other"));
    for (Tensor* t : {&input_, &output_, &total_, &shared_}) {
      ASSERT_OK_AND_ASSIGN(*t, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
      device_->ops().Zero(*t, *compute_);
    }
    ASSERT_OK_AND_ASSIGN(pinned_, device_->AllocatePinned(kNumel * sizeof(float)));
    ASSERT_OK(compute_->Synchronize());
  }

  void Upload(float first) {
    auto* values = reinterpret_cast<float*>(pinned_.data());
    for (int64_t i = 0; i < kNumel; ++i) values[i] = first + static_cast<float>(i % 7);
    compute_->CopyAsync(input_.data(), values, input_.nbytes());
    EXPECT_OK(compute_->Synchronize());
  }

  std::vector<float> Read(const Tensor& t) {
    std::vector<float> values(t.numel());
    compute_->CopyAsync(values.data(), t.data(), t.nbytes());
    EXPECT_OK(compute_->Synchronize());
    return values;
  }

  // output = input / 3 + input / 7, the second term by the other stream; total += output. Allocates its own memory.
  absl::Status Work() {
    const TensorOps& ops = device_->ops();
    other_->Wait(compute_->Record());
    ops.CastDivide(input_, shared_, 7, *other_);
    const Event divided = other_->Record();
    FSDP_ASSIGN_OR_RETURN(const Tensor third, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
    ops.CastDivide(input_, third, 3, *compute_);
    compute_->Wait(divided);
    ops.Accumulate(shared_, third, *compute_);
    ops.CastDivide(third, output_, 1, *compute_);
    ops.Accumulate(output_, total_, *compute_);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<WorkGraph>> Capture() {
    return CaptureWork(*compute_, [this] { return Work(); });
  }

  // Captures output = input, then, behind `gate`, total += output; `before` is the event for the host in between.
  absl::StatusOr<std::unique_ptr<WorkGraph>> CaptureGated(ReplayGate& gate, Event& before) {
    return CaptureWork(*compute_, [&] {
      device_->ops().CastDivide(input_, output_, 1, *compute_);
      before = RecordForHost(*compute_);
      gate.Pass(*compute_);
      device_->ops().Accumulate(output_, total_, *compute_);
      return absl::OkStatus();
    });
  }

  // Expects that `work` is refused with `message`, and that the streams work as before.
  void ExpectRefused(const std::function<absl::Status()>& work, const std::string& message) {
    EXPECT_THAT(CaptureWork(*compute_, work), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(message)));
    EXPECT_FALSE(IsCapturing(*compute_));
    Upload(1);
    EXPECT_OK(Work());
    EXPECT_OK(compute_->Synchronize());
    EXPECT_OK(other_->Synchronize());
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> compute_, other_;
  Tensor input_, output_, total_, shared_;
  Buffer pinned_;
};

TEST_F(CudaGraphTest, ReplaysEqualTheWorkItselfForEveryInput) {
  std::vector<std::vector<float>> eager;
  for (const float first : {1.0f, -3.5f, 1000.0f}) {
    Upload(first);
    ASSERT_OK(Work());
    eager.push_back(Read(output_));
  }
  const std::vector<float> eager_total = Read(total_);
  device_->ops().Zero(total_, *compute_);
  ASSERT_OK_AND_ASSIGN(const auto graph, Capture());
  size_t step = 0;
  for (const float first : {1.0f, -3.5f, 1000.0f}) {
    Upload(first);
    graph->Replay();
    EXPECT_EQ(Read(output_), eager[step++]);
  }
  EXPECT_EQ(Read(total_), eager_total);
}

TEST_F(CudaGraphTest, ACaptureRunsNothing) {
  Upload(5);
  ASSERT_OK_AND_ASSIGN(const auto graph, Capture());
  EXPECT_EQ(Read(total_), std::vector<float>(kNumel, 0.0f));
}

TEST_F(CudaGraphTest, ReplaysFollowEachOtherAndWhatTheOtherStreamsHave) {
  ASSERT_OK_AND_ASSIGN(const auto graph, Capture());
  ASSERT_OK_AND_ASSIGN(const Tensor scaled, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
  ASSERT_OK_AND_ASSIGN(const Tensor two, Tensor::Empty(*device_, DType::kFloat32, {1}));
  Upload(2);
  device_->ops().CastDivide(input_.Slice({0, 1}), two, 1, *compute_);
  graph->Replay();
  graph->Replay();
  // On the other stream, after the replay that writes its input, and before the replay that writes it again, which has
  // to wait.
  StreamHold hold;
  hold.Stop(*other_);
  device_->ops().ScaleBy({shared_}, two, *other_);
  device_->ops().CastDivide(shared_, scaled, 1, *other_);
  Upload(3);
  graph->Replay();
  const Event end = compute_->Record();
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(end.Query());
  hold.Release();
  const std::vector<float> output = Read(output_), total = Read(total_), twice = Read(scaled);
  for (int64_t i = 0; i < kNumel; ++i) {
    const float before = 2 + static_cast<float>(i % 7), input = before + 1;
    ASSERT_EQ(output[i], input / 3 + input / 7) << i;
    const float added = before / 3 + before / 7;
    ASSERT_EQ(total[i], added + added + output[i]) << i;
    ASSERT_EQ(twice[i], before / 7 * 2) << i;
  }
}

TEST_F(CudaGraphTest, FreedMemoryServesTheSameCaptureAgainAndIsTheGraphsAlone) {
  const int64_t before = device_->allocated_bytes();
  std::vector<void*> addresses;
  ASSERT_OK_AND_ASSIGN(auto graph, CaptureWork(*compute_, [&]() -> absl::Status {
                         for (int i = 0; i < 3; ++i) {
                           FSDP_ASSIGN_OR_RETURN(const Tensor t,
                                                 Tensor::Empty(*device_, DType::kFloat32, {kNumel - i}));
                           device_->ops().Zero(t, *compute_);
                           addresses.push_back(t.data());
                         }
                         return absl::OkStatus();
                       }));
  EXPECT_EQ(addresses[1], addresses[0]);
  EXPECT_EQ(addresses[2], addresses[0]);
  EXPECT_EQ(device_->allocated_bytes() - before, kNumel * 4);
  graph->Replay();
  ASSERT_OK_AND_ASSIGN(const Tensor outside, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
  EXPECT_NE(outside.data(), addresses[0]);
  graph = nullptr;
  EXPECT_EQ(device_->allocated_bytes() - before, kNumel * 4);  // memory outside of the graph
}

TEST_F(CudaGraphTest, MemoryThatCapturedWorkUsesLivesAsLongAsTheGraph) {
  const int64_t before = device_->allocated_bytes();
  std::unique_ptr<WorkGraph> graph;
  {
    ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
    ASSERT_OK_AND_ASSIGN(graph, CaptureWork(*compute_, [&] {
                           device_->ops().Zero(t, *compute_);
                           return absl::OkStatus();
                         }));
  }
  EXPECT_EQ(device_->allocated_bytes() - before, kNumel * 4);
  graph->Replay();
  graph = nullptr;
  EXPECT_EQ(device_->allocated_bytes(), before);
}

TEST_F(CudaGraphTest, AnEventOfACaptureIsThatOfTheLastReplay) {
  Event event;
  ASSERT_OK_AND_ASSIGN(const auto graph, CaptureWork(*compute_, [&] {
                         compute_->CopyAsync(pinned_.data(), total_.data(), total_.nbytes());
                         event = compute_->Record();
                         EXPECT_FALSE(event.Query());
                         return absl::OkStatus();
                       }));
  EXPECT_TRUE(event.Query());
  for (const float value : {3.0f, 4.0f}) {
    Upload(value);
    device_->ops().CastDivide(input_, total_, 1, *compute_);
    graph->Replay();
    other_->Wait(event);
    device_->ops().CastDivide(total_, shared_, 1, *other_);
    ASSERT_OK(event.Synchronize());
    EXPECT_EQ(reinterpret_cast<const float*>(pinned_.data())[0], value);
    ASSERT_OK(other_->Synchronize());
    EXPECT_EQ(Read(shared_)[0], value);
  }
}

TEST_F(CudaGraphTest, AnEventForTheHostIsReachedBeforeTheWorkThatWasCapturedLater) {
  ASSERT_OK_AND_ASSIGN(const Buffer copied, device_->AllocatePinned(input_.nbytes()));
  StreamHold hold;
  Event event;
  ASSERT_OK_AND_ASSIGN(const auto graph, CaptureWork(*compute_, [&] {
                         compute_->CopyAsync(copied.data(), input_.data(), input_.nbytes());
                         event = RecordForHost(*compute_);
                         EXPECT_FALSE(event.Query());
                         hold.Stop(*compute_);
                         device_->ops().Accumulate(input_, total_, *compute_);
                         return absl::OkStatus();
                       }));
  EXPECT_TRUE(event.Query());
  for (const float value : {3.0f, 4.0f}) {
    Upload(value);
    graph->Replay();
    const Event end = compute_->Record();
    ASSERT_OK(event.Synchronize());
    EXPECT_EQ(reinterpret_cast<const float*>(copied.data())[0], value);
    EXPECT_TRUE(event.Query());
    EXPECT_FALSE(end.Query());
    hold.Release();
    ASSERT_OK(end.Synchronize());
  }
  EXPECT_EQ(Read(total_)[0], 7);
  compute_->Run([] { return absl::DataLossError("failed before"); });
  graph->Replay();
  EXPECT_THAT(event.Synchronize(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("failed before")));
}

TEST_F(CudaGraphTest, AGateHoldsTheWorkBehindItUntilItsEventIsReachedAndNotTheWorkBeforeIt) {
  ASSERT_OK_AND_ASSIGN(const auto gate, CreateReplayGate(*device_));
  ASSERT_OK_AND_ASSIGN(const Buffer copied, device_->AllocatePinned(total_.nbytes()));
  Event before;
  ASSERT_OK_AND_ASSIGN(const auto graph, CaptureGated(*gate, before));
  Upload(1);
  graph->Replay();
  EXPECT_EQ(Read(total_)[0], 1) << "a gate that was never closed is open";
  StreamHold hold;
  for (const float value : {2.0f, 3.0f}) {
    const float total = Read(total_)[0];
    Upload(value);
    hold.Stop(*other_);
    other_->CopyAsync(copied.data(), total_.data(), total_.nbytes());
    gate->CloseUntil(other_->Record());
    graph->Replay();
    const Event end = compute_->Record();
    ASSERT_OK(before.Synchronize());
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_FALSE(end.Query());
    hold.Release();
    ASSERT_OK(end.Synchronize());
    EXPECT_EQ(reinterpret_cast<const float*>(copied.data())[0], total);
  }
  graph->Replay();
  EXPECT_EQ(Read(total_)[0], 9) << "its event is reached, so it is open";
}

// Which the gate's stream can only wait for later: Replay does not block, and nothing passes.
TEST_F(CudaGraphTest, AGateIsClosedByAnEventThatIsBehindHostWork) {
  ASSERT_OK_AND_ASSIGN(const auto gate, CreateReplayGate(*device_));
  Event before;
  ASSERT_OK_AND_ASSIGN(const auto graph, CaptureGated(*gate, before));
  Upload(4);
  std::promise<void> opened;
  other_->Run([future = opened.get_future().share()] {
    return future.wait_for(std::chrono::seconds(20)) == std::future_status::ready
               ? absl::OkStatus()
               : absl::DeadlineExceededError("Replay waited for the host work");
  });
  gate->CloseUntil(other_->Record());
  graph->Replay();
  opened.set_value();
  EXPECT_EQ(Read(total_)[0], 4);
  other_->Run([] { return absl::DataLossError("the copy failed"); });
  gate->CloseUntil(other_->Record());
  graph->Replay();
  EXPECT_THAT(compute_->Synchronize(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the copy failed")));
}

TEST_F(CudaGraphTest, AGateOutsideOfACaptureIsAWait) {
  ASSERT_OK_AND_ASSIGN(const auto gate, CreateReplayGate(*device_));
  gate->Pass(*compute_);
  ASSERT_OK(compute_->Synchronize());
  StreamHold hold;
  hold.Stop(*other_);
  gate->CloseUntil(other_->Record());
  gate->Pass(*compute_);
  const Event end = compute_->Record();
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(end.Query());
  hold.Release();
  EXPECT_OK(end.Synchronize());
}

TEST_F(CudaGraphTest, AnEventForTheHostOutsideOfACaptureIsAnOrdinaryOne) {
  Upload(6);
  compute_->CopyAsync(pinned_.data(), total_.data(), total_.nbytes());
  ASSERT_OK(RecordForHost(*compute_).Synchronize());
  EXPECT_EQ(reinterpret_cast<const float*>(pinned_.data())[0], 0);
}

TEST_F(CudaGraphTest, AStreamOfTheCaptureThatWaitsForAnEventForTheHostIsRefused) {
  ExpectRefused(
      [this] {
        other_->Wait(RecordForHost(*compute_));
        return absl::OkStatus();
      },
      "stream \"other\": waits in a capture for an event that is for the host");
}

TEST_F(CudaGraphTest, HostWorkIsRefused) {
  ExpectRefused(
      [this] {
        compute_->Run([] { return absl::OkStatus(); });
        return absl::OkStatus();
      },
      "stream \"compute\": host work cannot be captured");
}

TEST_F(CudaGraphTest, WaitingOnTheHostIsRefused) {
  ExpectRefused([this] { return compute_->Synchronize(); },
                "stream \"compute\": cannot be waited for by the host while its work is captured");
  ExpectRefused([this] { return compute_->Record().Synchronize(); },
                "an event of work that is being captured cannot be waited for by the host");
}

TEST_F(CudaGraphTest, MemoryOfTheCaptureOnAnotherStreamIsRefused) {
  ExpectRefused(
      [this]() -> absl::Status {
        other_->Wait(compute_->Record());
        FSDP_ASSIGN_OR_RETURN(const Tensor t, Tensor::Empty(*device_, DType::kFloat32, {kNumel}));
        device_->ops().Zero(t, *other_);
        return absl::OkStatus();
      },
      "stream \"other\": its captured work uses memory that was allocated in this capture, which is for stream "
      "\"compute\"");
}

TEST_F(CudaGraphTest, ACaptureWithinACaptureIsRefused) {
  ExpectRefused([this] { return Capture().status(); },
                "stream \"compute\": a capture on its device is under way already");
}

TEST_F(CudaGraphTest, AnErrorOfTheWorkIsTheCaptures) {
  EXPECT_THAT(CaptureWork(*compute_, [] { return absl::InvalidArgumentError("of the work"); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of the work")));
  ASSERT_OK_AND_ASSIGN(const auto graph, Capture());
  Upload(1);
  graph->Replay();
  EXPECT_EQ(Read(total_)[0], 1.0f / 3 + 1.0f / 7);
}

TEST_F(CudaGraphTest, AFailedStreamReplaysNothing) {
  ASSERT_OK_AND_ASSIGN(const auto graph, Capture());
  compute_->Run([] { return absl::DataLossError("failed before"); });
  graph->Replay();
  EXPECT_THAT(compute_->Synchronize(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("failed before")));
}

// Observers are called before each launch and after it.
TEST_F(CudaGraphTest, AnObserverCanPreventAReplay) {
  struct Observer final : ReplayObserver {
    void BeforeReplay(Stream&) override { ++before; }
    absl::Status CheckReplay() override { return verdict; }
    void AfterReplay(const Event& event) override { done = event; }
    int before = 0;
    absl::Status verdict;
    Event done;
  };
  const auto observer = std::make_shared<Observer>();
  ASSERT_OK_AND_ASSIGN(const auto graph, CaptureWork(*compute_, [&] {
                         CudaStream::Of(*compute_).recording()->Add(observer);
                         return Work();
                       }));
  Upload(1);
  graph->Replay();
  ASSERT_OK(observer->done.Synchronize());
  const float once = Read(total_)[0];
  observer->verdict = absl::UnavailableError("the group is broken");
  graph->Replay();
  EXPECT_EQ(observer->before, 2);
  EXPECT_THAT(compute_->Synchronize(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the group is broken")));
  std::vector<float> values(kNumel);
  ASSERT_OK_AND_ASSIGN(const auto fresh, device_->CreateStream("fresh"));
  fresh->CopyAsync(values.data(), total_.data(), total_.nbytes());
  ASSERT_OK(fresh->Synchronize());
  EXPECT_EQ(values[0], once);
}

TEST(HostGraphTest, TheHostHasNone) {
  EXPECT_THAT(CreateReplayGate(*CreateHostDevice()).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("cpu has no graphs of work")));
  const std::shared_ptr<Device> host = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const auto stream, host->CreateStream("compute"));
  EXPECT_THAT(CaptureWork(*stream, [] { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("stream \"compute\" cannot be captured")));
}

}  // namespace
}  // namespace fsdp
