// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of one process, with heartbeats each 20 ms. Closing a rank's socket simulates a killed process;
// keeping the socket open without sending simulates a stopped one. Real processes on real hosts are in //tests/hosts.
#include "fsdp/collectives/job/job_watch.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/job/store_member.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kWorldSize = 4;
constexpr absl::Duration kLong = absl::Seconds(20);
constexpr WatchOptions kQuick = {.interval = absl::Milliseconds(20), .silence = absl::Seconds(2)};

absl::Time Soon() { return SteadyNow() + kLong; }

class JobWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    FileDescriptor listener = ListenTcp("127.0.0.1", 0).value();
    port_ = ListeningPort(listener.get()).value();
    std::vector<FileDescriptor> listeners;
    listeners.push_back(std::move(listener));
    server_ = StoreServer::Start(std::move(listeners), Member(0)).value();
  }

  // Ranks 0 and 1 on host-a, 2 and 3 on host-b.
  static StoreMember Member(int rank) {
    return {
        .job = "job", .rank = rank, .world_size = kWorldSize, .host = rank < 2 ? "host-a" : "host-b", .pid = 10 + rank};
  }

  std::unique_ptr<Store> Connect(int rank) const {
    return Store::Connect(ConnectTcp("127.0.0.1", port_, Soon()).value(), Member(rank), Soon()).value();
  }

  // Rank 0 takes the server.
  std::unique_ptr<JobWatch> Watch(int rank, const WatchOptions& options = kQuick) {
    return JobWatch::Start(Connect(rank), rank == 0 ? std::move(server_) : nullptr, options).value();
  }

  // A rank that is watched and never sends anything.
  FileDescriptor Mute(int rank) const { return Connect(rank)->Watch(kQuick.interval, kQuick.silence).value(); }

  int port_ = 0;
  std::unique_ptr<StoreServer> server_;
};

TEST_F(JobWatchTest, AsLongAsAllRanksAreThereNobodyIsLost) {
  const auto rank0 = Watch(0);
  const auto rank1 = Watch(1);
  EXPECT_OK(rank0->Verdict(absl::Milliseconds(200)));
  EXPECT_OK(rank1->Verdict(absl::ZeroDuration()));
}

// With the heartbeats of production: the end of a process is noticed without them.
TEST_F(JobWatchTest, ARankThatEndsWithoutLeavingIsNamedToAllWithinASecond) {
  const auto rank0 = Watch(0, {});
  const auto rank1 = Watch(1, {});
  const auto rank2 = Watch(2, {});
  auto rank3 = Watch(3, {});
  const absl::Time killed = SteadyNow();
  rank3.reset();
  for (JobWatch* survivor : {rank0.get(), rank1.get(), rank2.get()}) {
    EXPECT_THAT(survivor->Verdict(kLong), StatusIs(absl::StatusCode::kUnavailable, "rank 3 (host-b, pid 13) is gone"));
  }
  EXPECT_LT(SteadyNow() - killed, absl::Seconds(4)) << "a second, or more on a loaded machine; silence takes 10";
}

TEST_F(JobWatchTest, AHostWhoseRanksAllEndIsNamed) {
  const auto rank0 = Watch(0);
  FileDescriptor rank2 = Mute(2);
  FileDescriptor rank3 = Mute(3);
  rank2.Close();
  rank3.Close();
  EXPECT_THAT(rank0->Verdict(kLong), StatusIs(absl::StatusCode::kUnavailable, "host-b (ranks 2, 3) is gone"));
}

TEST_F(JobWatchTest, ARankThatDoesNotAnswerIsNamed) {
  const auto rank0 = Watch(0);
  const auto rank2 = Watch(2);
  const FileDescriptor rank3 = Mute(3);
  EXPECT_THAT(rank2->Verdict(kLong),
              StatusIs(absl::StatusCode::kUnavailable, "rank 3 (host-b, pid 13) does not answer"));
}

TEST_F(JobWatchTest, ARankThatGivesUpIsNamedWithItsReasonAndNotAsGone) {
  const auto rank0 = Watch(0);
  auto rank1 = Watch(1);
  rank1->GiveUp("the loss is not a number");
  rank1.reset();
  EXPECT_THAT(rank0->Verdict(kLong),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 (host-a, pid 11) gave up: the loss is not a number"));
}

TEST_F(JobWatchTest, ARankThatComesAfterALossIsToldOfIt) {
  const auto rank0 = Watch(0);
  Watch(1).reset();
  EXPECT_THAT(rank0->Verdict(kLong), StatusIs(absl::StatusCode::kUnavailable));
  const auto rank2 = Watch(2);
  EXPECT_THAT(rank2->Verdict(kLong), StatusIs(absl::StatusCode::kUnavailable, "rank 1 (host-a, pid 11) is gone"));
}

TEST_F(JobWatchTest, ARankThatLeavesIsNoLoss) {
  const auto rank0 = Watch(0);
  auto rank1 = Watch(1);
  rank1->Leave();
  rank1.reset();
  EXPECT_OK(rank0->Verdict(absl::Milliseconds(300)));
}

TEST_F(JobWatchTest, WhenRank0EndsWithoutLeavingTheOthersNameIt) {
  auto rank0 = Watch(0);
  const auto rank1 = Watch(1);
  rank0.reset();
  EXPECT_THAT(rank1->Verdict(kLong), StatusIs(absl::StatusCode::kUnavailable,
                                              "rank 0 (host-a, pid 10), which serves the job's store, is gone"));
}

TEST_F(JobWatchTest, WhenRank0GivesUpTheOthersLearnWhy) {
  auto rank0 = Watch(0);
  const auto rank1 = Watch(1);
  rank0->GiveUp("the disk is full");
  rank0.reset();
  EXPECT_THAT(rank1->Verdict(kLong),
              StatusIs(absl::StatusCode::kUnavailable, "rank 0 (host-a, pid 10) gave up: the disk is full"));
}

TEST_F(JobWatchTest, WhenRank0LeavesNobodyIsLostAndNobodyWaits) {
  auto rank0 = Watch(0);
  const auto rank1 = Watch(1);
  const auto rank2 = Watch(2);
  rank0->Leave();
  rank0.reset();
  EXPECT_OK(rank1->Verdict(absl::InfiniteDuration())) << "returns when the watch has ended";
  EXPECT_OK(rank2->Verdict(absl::InfiniteDuration()));
}

// Like a job whose ranks meet and have no work.
TEST_F(JobWatchTest, ARankThatBeginsToWatchAfterRank0HasLeftLosesNobody) {
  auto rank0 = Watch(0);
  std::unique_ptr<Store> late = Connect(1);
  rank0->Leave();
  std::thread ending([&rank0] { rank0.reset(); });
  absl::SleepFor(absl::Milliseconds(50));  // so that the server is usually about to end
  const auto rank1 = JobWatch::Start(std::move(late), nullptr, kQuick);
  ending.join();
  ASSERT_OK(rank1);
  EXPECT_OK((*rank1)->Verdict(absl::InfiniteDuration()));
}

// A server written for this test: takes hello and watch, then sends `last`, and holds the connection until its client
// closes it.
void ServeOnce(int listener, const std::string& last) {
  FileDescriptor socket;
  while (!socket.ok()) socket = FileDescriptor(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK));
  std::string input;
  for (const StoreFrame& reply :
       {StoreMember{.job = "job", .rank = 0, .world_size = 2, .host = "host-a", .pid = 7}.ToFrame(0), StoreFrame{}}) {
    char byte = 0;
    while (!TakeStoreFrame(input).value().has_value()) {
      ASSERT_OK(ReceiveAll(socket.get(), absl::MakeSpan(&byte, 1), Soon()));
      input += byte;
    }
    ASSERT_OK(SendAll(socket.get(), EncodeStoreFrame(reply), Soon()));
  }
  ASSERT_OK(SendAll(socket.get(), last, Soon()));
  char rest[256];
  while (!absl::IsUnavailable(ReceiveAll(socket.get(), absl::MakeSpan(rest), Soon()))) {
  }
}

// The verdict of rank 1 about such a server.
absl::Status VerdictAfter(const std::string& last) {
  const FileDescriptor listener = ListenTcp("127.0.0.1", 0).value();
  std::thread server([&] { ServeOnce(listener.get(), last); });
  absl::Status verdict;
  {
    const int port = ListeningPort(listener.get()).value();
    auto store = Store::Connect(ConnectTcp("127.0.0.1", port, Soon()).value(),
                                {.job = "job", .rank = 1, .world_size = 2, .host = "host-b", .pid = 8}, Soon());
    const auto watch = JobWatch::Start(*std::move(store), nullptr,
                                       {.interval = absl::Milliseconds(20), .silence = absl::Milliseconds(300)});
    verdict = (*watch)->Verdict(kLong);
  }
  server.join();
  return verdict;
}

TEST(JobWatchServerTest, ARank0ThatDoesNotAnswerIsNamed) {
  EXPECT_THAT(VerdictAfter(""), StatusIs(absl::StatusCode::kUnavailable,
                                         "rank 0 (host-a, pid 7), which serves the job's store, does not answer"));
}

TEST(JobWatchServerTest, WhatIsNoMessageOfAStoreEndsTheWatch) {
  EXPECT_THAT(VerdictAfter(std::string(100, '\xff')),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("sent a message that is not a store's")));
}

TEST(JobWatchServerTest, AVerdictCannotWriteToTheTerminal) {
  EXPECT_THAT(VerdictAfter(EncodeStoreFrame({.kind = kStoreLoss, .value = "\x1b[2Jrank 2 is gone"})),
              StatusIs(absl::StatusCode::kUnavailable, "\\033[2Jrank 2 is gone"));
}

}  // namespace
}  // namespace fsdp
