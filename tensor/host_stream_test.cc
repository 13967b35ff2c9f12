// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the host device. Work is held back by futures, never by sleeping.

#include "fsdp/tensor/host_stream.h"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

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

std::function<absl::Status()> Failing(absl::Status status) {
  // Moved, so that the test's thread does not keep a reference.
  return [status = std::move(status)] { return status; };
}

class HostStreamTest : public testing::Test {
 protected:
  std::unique_ptr<Stream> NewStream(std::string name) {
    absl::StatusOr<std::unique_ptr<Stream>> stream = device_->CreateStream(std::move(name));
    EXPECT_OK(stream);
    return *std::move(stream);
  }

  std::shared_ptr<Device> device_ = CreateHostDevice();
};

TEST_F(HostStreamTest, KnowsItsDeviceAndName) {
  auto stream = NewStream("unshard");
  EXPECT_EQ(stream->name(), "unshard");
  EXPECT_EQ(&stream->device(), device_.get());
  EXPECT_OK(stream->Synchronize());
}

TEST_F(HostStreamTest, TheThreadHasTheStreamsName) {
  auto stream = NewStream("a name of more than fifteen bytes");
  std::string name;
  stream->Run([&name] {
    char buffer[32];
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    name = buffer;
    return absl::OkStatus();
  });
  EXPECT_OK(stream->Synchronize());
  EXPECT_EQ(name, "a name of more ");
}

TEST_F(HostStreamTest, WorkRunsInOrder) {
  auto stream = NewStream("s");
  std::vector<int> order;  // only the stream's thread touches it until Synchronize
  for (int i = 0; i < 10000; ++i) {
    stream->Run([&order, i] {
      order.push_back(i);
      return absl::OkStatus();
    });
  }
  EXPECT_OK(stream->Synchronize());
  std::vector<int> expected(10000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_F(HostStreamTest, RunDoesNotWaitForTheWork) {
  auto stream = NewStream("s");
  Gate gate;
  stream->Run(gate.Work());
  const Event event = stream->Record();
  EXPECT_FALSE(event.Query());
  gate.Open();
  EXPECT_OK(event.Synchronize());
  EXPECT_TRUE(event.Query());
}

TEST_F(HostStreamTest, CopiesBytes) {
  auto stream = NewStream("s");
  std::vector<char> source(100'000, 'x');
  std::vector<char> destination(source.size());
  stream->CopyAsync(destination.data(), source.data(), static_cast<int64_t>(source.size()));
  stream->CopyAsync(nullptr, nullptr, 0);
  EXPECT_OK(stream->Synchronize());
  EXPECT_EQ(destination, source);
}

TEST_F(HostStreamTest, AnEventCoversExactlyTheWorkBeforeIt) {
  auto stream = NewStream("s");
  Gate gate;
  int before = 0;
  stream->Run([&before] {
    before = 1;
    return absl::OkStatus();
  });
  const Event event = stream->Record();
  stream->Run(gate.Work());
  EXPECT_OK(event.Synchronize());  // would never return if it covered the gate
  EXPECT_EQ(before, 1);
  gate.Open();
}

TEST_F(HostStreamTest, AnotherStreamWaitsForAnEvent) {
  auto producer = NewStream("producer");
  auto consumer = NewStream("consumer");
  Gate gate;
  int value = 0;
  producer->Run(gate.Work());
  producer->Run([&value] {
    value = 7;
    return absl::OkStatus();
  });
  consumer->Wait(producer->Record());
  int seen = 0;
  consumer->Run([&value, &seen] {
    seen = value;
    return absl::OkStatus();
  });
  const Event consumed = consumer->Record();
  EXPECT_FALSE(consumed.Query());
  gate.Open();
  EXPECT_OK(consumed.Synchronize());
  EXPECT_EQ(seen, 7);
}

// The shape of a training step: two streams that hand buffers to each other for many rounds. Run under tsan.
TEST_F(HostStreamTest, TwoStreamsTakeTurns) {
  auto a = NewStream("a");
  auto b = NewStream("b");
  int64_t value = 0;  // no lock: the events order all access
  Event handed_back;
  for (int i = 0; i < 2000; ++i) {
    a->Wait(handed_back);
    a->Run([&value] {
      value = value * 3 + 1;
      return absl::OkStatus();
    });
    b->Wait(a->Record());
    b->Run([&value] {
      value = value % 1000;
      return absl::OkStatus();
    });
    handed_back = b->Record();
  }
  EXPECT_OK(handed_back.Synchronize());
  int64_t expected = 0;
  for (int i = 0; i < 2000; ++i) expected = (expected * 3 + 1) % 1000;
  EXPECT_EQ(value, expected);
}

TEST_F(HostStreamTest, ManyThreadsWaitForOneEvent) {
  auto stream = NewStream("s");
  Gate gate;
  stream->Run(gate.Work());
  stream->Run(Failing(absl::DataLossError("torn")));
  const Event event = stream->Record();
  std::vector<std::thread> waiters;
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back(
        [event] { EXPECT_THAT(event.Synchronize(), StatusIs(absl::StatusCode::kDataLoss, "stream \"s\": torn")); });
  }
  gate.Open();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST_F(HostStreamTest, EmptyEventsAreReached) {
  auto stream = NewStream("s");
  stream->Wait(Event());
  EXPECT_TRUE(Event().Query());
  EXPECT_OK(Event().Synchronize());
  EXPECT_OK(stream->Synchronize());
}

TEST_F(HostStreamTest, WaitingForTheStreamItselfIsNothing) {
  auto stream = NewStream("s");
  stream->Wait(stream->Record());
  EXPECT_OK(stream->Synchronize());
}

TEST_F(HostStreamTest, TheFirstErrorSticks) {
  auto stream = NewStream("reduce");
  int runs = 0;
  stream->Run(Failing(absl::DataLossError("block 3 is wrong")));
  stream->Run([&runs] {
    ++runs;
    return absl::OkStatus();
  });
  stream->Run(Failing(absl::NotFoundError("later")));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(stream->Synchronize(), StatusIs(absl::StatusCode::kDataLoss, "stream \"reduce\": block 3 is wrong"));
  }
  EXPECT_EQ(runs, 0);
}

TEST_F(HostStreamTest, PayloadsOfAnErrorAreKept) {
  auto stream = NewStream("s");
  absl::Status status = absl::AbortedError("peer died");
  status.SetPayload("fsdp/rank", absl::Cord("3"));
  stream->Run(Failing(std::move(status)));
  EXPECT_EQ(stream->Synchronize().GetPayload("fsdp/rank"), absl::Cord("3"));
}

TEST_F(HostStreamTest, NothingIsCopiedAfterAnError) {
  auto stream = NewStream("s");
  char source = 'x';
  char destination = 'o';
  stream->Run(Failing(absl::InternalError("broken")));
  stream->CopyAsync(&destination, &source, 1);
  EXPECT_THAT(stream->Synchronize(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(destination, 'o');
}

TEST_F(HostStreamTest, AnEventBeforeTheErrorIsClean) {
  auto stream = NewStream("s");
  const Event before = stream->Record();
  stream->Run(Failing(absl::InternalError("broken")));
  EXPECT_THAT(stream->Synchronize(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_OK(before.Synchronize());
}

TEST_F(HostStreamTest, ErrorsTravelWithEventsAndNameTheirOriginOnce) {
  auto first = NewStream("first");
  auto second = NewStream("second");
  auto third = NewStream("third");
  first->Run(Failing(absl::UnavailableError("link down")));
  second->Wait(first->Record());
  third->Wait(second->Record());
  int runs = 0;
  third->Run([&runs] {
    ++runs;
    return absl::OkStatus();
  });
  EXPECT_THAT(third->Synchronize(), StatusIs(absl::StatusCode::kUnavailable, "stream \"first\": link down"));
  EXPECT_EQ(runs, 0);
}

TEST_F(HostStreamTest, RunAlwaysRunsAfterAnErrorAndSeesIt) {
  auto stream = NewStream("s");
  std::vector<absl::Status> seen;
  const auto note = [&seen](const absl::Status& so_far) {
    seen.push_back(so_far);
    return absl::OkStatus();
  };
  stream->RunAlways(note);
  stream->Run(Failing(absl::InternalError("broken")));
  stream->RunAlways(note);
  stream->RunAlways([](const absl::Status&) { return absl::NotFoundError("second error"); });
  EXPECT_THAT(stream->Synchronize(), StatusIs(absl::StatusCode::kInternal, "stream \"s\": broken"));
  ASSERT_EQ(seen.size(), 2);
  EXPECT_OK(seen[0]);
  EXPECT_THAT(seen[1], StatusIs(absl::StatusCode::kInternal, "stream \"s\": broken"));
}

TEST_F(HostStreamTest, WhatRunAlwaysReturnsIsTheFirstError) {
  auto stream = NewStream("s");
  stream->RunAlways([](const absl::Status&) { return absl::NotFoundError("gone"); });
  EXPECT_THAT(stream->Synchronize(), StatusIs(absl::StatusCode::kNotFound, "stream \"s\": gone"));
}

// Work that runs after an error may still touch memory that the other stream uses.
TEST_F(HostStreamTest, AFailedStreamStillWaits) {
  auto producer = NewStream("producer");
  auto consumer = NewStream("consumer");
  Gate gate;
  std::atomic<bool> produced{false};
  producer->Run(gate.Work());
  producer->Run([&produced] {
    produced = true;
    return absl::OkStatus();
  });
  consumer->Run(Failing(absl::InternalError("broken")));
  consumer->Wait(producer->Record());
  bool was_produced = false;
  consumer->RunAlways([&](const absl::Status&) {
    was_produced = produced;
    return absl::OkStatus();
  });
  gate.Open();
  EXPECT_THAT(consumer->Synchronize(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_TRUE(was_produced);
}

TEST_F(HostStreamTest, DestructionRunsWhatIsPending) {
  Gate gate;
  int runs = 0;
  Event last;
  std::thread opener;
  {
    auto stream = NewStream("s");
    stream->Run(gate.Work());
    for (int i = 0; i < 100; ++i) {
      stream->Run([&runs] {
        ++runs;
        return absl::OkStatus();
      });
    }
    last = stream->Record();
    opener = std::thread([&gate] { gate.Open(); });
  }
  opener.join();
  EXPECT_EQ(runs, 100);
  EXPECT_OK(last.Synchronize());
}

TEST_F(HostStreamTest, AnEventOutlivesItsStream) {
  auto consumer = NewStream("consumer");
  Event event;
  {
    auto producer = NewStream("producer");
    producer->Run(Failing(absl::DataLossError("torn")));
    event = producer->Record();
  }
  EXPECT_TRUE(event.Query());
  consumer->Wait(event);
  EXPECT_THAT(consumer->Synchronize(), StatusIs(absl::StatusCode::kDataLoss, "stream \"producer\": torn"));
}

TEST_F(HostStreamTest, DestroyingAWaitingStreamDoesNotDeadlock) {
  auto producer = NewStream("producer");
  Gate gate;
  bool ran = false;
  producer->Run(gate.Work());
  std::thread opener;
  {
    auto consumer = NewStream("consumer");
    consumer->Wait(producer->Record());
    consumer->Run([&ran] {
      ran = true;
      return absl::OkStatus();
    });
    opener = std::thread([&gate] { gate.Open(); });
  }
  opener.join();
  EXPECT_TRUE(ran);
}

TEST_F(HostStreamTest, WorkMayAddWorkToOtherStreams) {
  auto first = NewStream("first");
  auto second = NewStream("second");
  int value = 0;
  first->Run([&] {
    second->Run([&value] {
      value = 1;
      return absl::OkStatus();
    });
    return second->Synchronize();
  });
  EXPECT_OK(first->Synchronize());
  EXPECT_EQ(value, 1);
}

TEST_F(HostStreamTest, BuffersAreReleasedAsSoonAsTheirWorkRan) {
  auto stream = NewStream("s");
  Gate gate;
  ASSERT_OK_AND_ASSIGN(Buffer buffer, device_->Allocate(1000));
  int64_t during_next = -1;
  stream->Run(gate.Work());
  stream->Run([buffer] { return absl::OkStatus(); });
  stream->Run([&] {
    during_next = device_->allocated_bytes();
    return absl::OkStatus();
  });
  buffer = Buffer();
  EXPECT_EQ(device_->allocated_bytes(), 1000) << "the pending work holds it";
  gate.Open();
  EXPECT_OK(stream->Synchronize());
  EXPECT_EQ(during_next, 0);
}

TEST_F(HostStreamTest, SkippedWorkIsReleasedToo) {
  auto stream = NewStream("s");
  ASSERT_OK_AND_ASSIGN(Buffer buffer, device_->Allocate(1000));
  stream->Run(Failing(absl::InternalError("broken")));
  stream->Run([buffer] { return absl::OkStatus(); });
  buffer = Buffer();
  EXPECT_THAT(stream->Synchronize(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(device_->allocated_bytes(), 0);
}

TEST_F(HostStreamTest, StreamsOfManyDevicesWaitForEachOther) {
  std::vector<std::shared_ptr<Device>> devices;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 8; ++i) {
    devices.push_back(CreateHostDevice());
    ASSERT_OK_AND_ASSIGN(streams.emplace_back(), devices.back()->CreateStream("ring"));
  }
  int token = 0;
  for (int round = 0; round < 50; ++round) {
    for (size_t i = 0; i < streams.size(); ++i) {
      streams[i]->Run([&token] {
        ++token;
        return absl::OkStatus();
      });
      streams[(i + 1) % streams.size()]->Wait(streams[i]->Record());
    }
  }
  EXPECT_OK(streams[0]->Synchronize());
  EXPECT_EQ(token, 400);
}

}  // namespace
}  // namespace fsdp
