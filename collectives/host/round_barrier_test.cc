// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/host/round_barrier.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/host/local_fabric.h"
#include "fsdp/collectives/host/ticket_line.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr CollectiveId kWhat = {.op = CollectiveOp::kBarrier, .sequence = 7};

// Two ranks' barriers, each used from its own thread.
class RoundBarrierTest : public testing::Test {
 protected:
  std::vector<std::unique_ptr<Fabric>> fabrics_ = CreateLocalFabrics({CreateHostDevice(), CreateHostDevice()});
  RoundBarrier first_{*fabrics_[0], absl::Minutes(1)};
  RoundBarrier second_{*fabrics_[1], absl::Minutes(1)};
};

TEST_F(RoundBarrierTest, WhatIsWrittenForARoundIsReadAfterIt) {
  std::thread peer([this] {
    for (int round = 1; round <= 1000; ++round) {
      *fabrics_[1]->Slot(1, second_.write_parity()) = static_cast<std::byte>(round);
      ASSERT_OK(second_.Await(kWhat));
    }
  });
  for (int round = 1; round <= 1000; ++round) {
    EXPECT_NE(first_.write_parity(), first_.read_parity());
    ASSERT_OK(first_.Await(kWhat));
    EXPECT_EQ(*fabrics_[0]->Slot(1, first_.read_parity()), static_cast<std::byte>(round));
  }
  peer.join();
}

// Protects against memory that is freed while a peer still copies from it.
TEST_F(RoundBarrierTest, AFailedRankWaitsForItsReaders) {
  std::atomic<bool> read = false;
  ASSERT_OK(second_.BeginReading(kWhat));
  std::thread failed([&] {
    first_.GiveUp(absl::InternalError("broken"));
    first_.AwaitReaders();
    EXPECT_TRUE(read);
  });
  while (fabrics_[0]->control().group().aborted_by == 0) {
    std::this_thread::yield();
  }
  read = true;
  second_.EndReading();
  failed.join();
}

TEST_F(RoundBarrierTest, NoRankBeginsToReadWhenARankHasFailed) {
  first_.GiveUp(absl::InternalError("broken"));
  EXPECT_THAT(second_.BeginReading(kWhat),
              StatusIs(absl::StatusCode::kInternal, "rank 1 of 2: barrier #7: rank 0 gave up: broken"));
  first_.AwaitReaders();
}

// Protects AllReduceStatus: a rank that returns the agreed error, and aborts, must not keep a slower one from receiving
// it.
TEST_F(RoundBarrierTest, GivingUpAfterARoundDoesNotFailThatRound) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto fabrics = CreateLocalFabrics({CreateHostDevice(), CreateHostDevice()});
    RoundBarrier quick(*fabrics[0], absl::Minutes(1));
    RoundBarrier slow(*fabrics[1], absl::Minutes(1));
    std::thread peer([&quick] {
      EXPECT_OK(quick.Await(kWhat));
      quick.GiveUp(absl::InternalError("later"));
    });
    EXPECT_OK(slow.Await(kWhat));
    EXPECT_THAT(slow.Await(kWhat), StatusIs(absl::StatusCode::kInternal, HasSubstr("later")));
    peer.join();
  }
}

// Protects a host of which a rank is stopped: the rank is alive, and nothing in shared memory tells that it is lost.
TEST_F(RoundBarrierTest, TheWatchEndsAWaitForARankThatIsAlive) {
  const PeerWatch watch = [](absl::Duration) {
    return absl::UnavailableError("rank 3 (host-b, pid 5) does not answer");
  };
  RoundBarrier watched(*fabrics_[0], absl::Minutes(10), {.numbers = {2, 3}, .group_size = 4}, watch);
  EXPECT_THAT(watched.Await(kWhat), StatusIs(absl::StatusCode::kUnavailable,
                                             "rank 2 of 4: barrier #7: rank 3 (host-b, pid 5) does not answer"));
}

TEST_F(RoundBarrierTest, ARoundThatIsCompleteIsNoErrorWhateverTheWatchSays) {
  const PeerWatch watch = [](absl::Duration) { return absl::UnavailableError("rank 1 is gone"); };
  RoundBarrier watched(*fabrics_[0], absl::Minutes(10), {}, watch);
  std::thread peer([this] { EXPECT_OK(second_.Await(kWhat)); });
  while (fabrics_[1]->control().rank(1).arrived == 0) {
    std::this_thread::yield();
  }
  EXPECT_OK(watched.Await(kWhat));
  peer.join();
}

TEST_F(RoundBarrierTest, GivingUpBeforeARoundFailsItForAll) {
  second_.GiveUp(absl::InternalError("before"));
  std::thread peer([this] { EXPECT_THAT(second_.Await(kWhat), StatusIs(absl::StatusCode::kInternal)); });
  EXPECT_THAT(first_.Await(kWhat), StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 1 gave up: before")));
  peer.join();
}

TEST_F(RoundBarrierTest, TheFirstReasonCountsAndLongOnesAreCut) {
  second_.GiveUp(absl::InternalError(std::string(5000, 'x')));
  second_.GiveUp(absl::DataLossError("second"));
  EXPECT_THAT(first_.Await(kWhat), StatusIs(absl::StatusCode::kInternal, HasSubstr("xxx")));
}

TEST(TicketLineTest, WorkRunsInTheOrderOfTickets) {
  TicketLine line;
  std::vector<uint64_t> served;
  std::vector<uint64_t> odd;
  std::vector<uint64_t> even;
  for (int i = 0; i < 100; ++i) {
    const uint64_t ticket = line.Take();
    (ticket % 2 == 1 ? odd : even).push_back(ticket);
  }
  const auto serve = [&](const std::vector<uint64_t>& tickets) {
    for (const uint64_t ticket : tickets) {
      line.Serve(ticket, [&] {
        served.push_back(ticket);  // in turn, so no lock
        return 0;
      });
    }
  };
  std::thread other([&] { serve(even); });
  serve(odd);
  other.join();
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(served[i], i + 1);
  }
}

}  // namespace
}  // namespace fsdp
