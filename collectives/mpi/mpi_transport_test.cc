// SPDX-License-Identifier: Apache-2.0
//
// The transport over MPI: MPI's launcher starts this program as three ranks (//tests/mpi does), each of which runs all
// tests. The ranks meet by the store of their job. Each test has its own transport, so that leftovers of one test in
// MPI would affect the next. The program initialises and finalizes MPI itself, because it does so after failures too.
#include "fsdp/collectives/mpi/mpi_transport.h"

#include <mpi.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/job/job_store.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/collectives/net/transport_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

class MpiTransportTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_OK_AND_ASSIGN(rendezvous_, RendezvousFromEnvironment());
    ASSERT_EQ(rendezvous_.world_size, 3) << "start this by mpiexec -n 3";
    ASSERT_OK_AND_ASSIGN(store_, JobStore::Open(rendezvous_, kTimeout));
  }
  static void TearDownTestSuite() {
    ASSERT_NE(store_, nullptr);
    EXPECT_OK(store_->AllGatherObject("").status());  // no rank needs the store any more
    store_.reset();
  }

  static absl::StatusOr<std::vector<std::string>> Gather(std::string_view blob) {
    return store_->AllGatherObject(blob);
  }

  static int rank() { return rendezvous_.rank; }
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const MpiTransportOptions& options = {.place = "here"}) {
    return CreateMpiTransport(rank(), 3, options, Gather);
  }

  static inline Rendezvous rendezvous_;
  static inline std::unique_ptr<JobStore> store_;
};

TEST_F(MpiTransportTest, CarriesMessagesOfAnySize) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, Create());
  EXPECT_EQ(transport->rank(), rank());
  EXPECT_EQ(transport->size(), 3);
  for (const size_t nbytes : {size_t{1}, size_t{32}, size_t{70000}, size_t{1} << 20, (size_t{5} << 20) + 3}) {
    EXPECT_OK(ExchangeTexts(*transport, nbytes));
  }
}

TEST_F(MpiTransportTest, ALongMessageTravelsInPieces) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, Create({.piece_bytes = 1000}));
  for (const size_t nbytes : {size_t{999}, size_t{1000}, size_t{1001}, size_t{123456}}) {
    EXPECT_OK(ExchangeTexts(*transport, nbytes));
  }
}

TEST_F(MpiTransportTest, MessagesArriveInTheOrderInWhichTheyWereSent) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, Create());
  const int next = (rank() + 1) % 3;
  const int before = (rank() + 2) % 3;
  std::vector<int> out(100);
  std::vector<int> in(100, -1);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int i = 0; i < 100; ++i) {
    out[i] = i;
    sends.push_back({next, reinterpret_cast<std::byte*>(&out[i]), sizeof(int)});
    receives.push_back({before, reinterpret_cast<std::byte*>(&in[i]), sizeof(int)});
  }
  EXPECT_OK(transport->Exchange(sends, receives, kWhat, kTimeout));
  EXPECT_EQ(in, out);
}

TEST_F(MpiTransportTest, TheJobsOrderOfRanksNeedNotBeMpis) {
  const BlobGather backwards = [](std::string_view blob) -> absl::StatusOr<std::vector<std::string>> {
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, Gather(blob));
    return std::vector<std::string>(blobs.rbegin(), blobs.rend());
  };
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, CreateMpiTransport(2 - rank(), 3, {}, backwards));
  EXPECT_OK(ExchangeTexts(*transport, 100));
}

TEST_F(MpiTransportTest, SplitMakesATransportOfItsMembers) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> all, Create());
  for (int round = 0; round < 3; ++round) {
    const std::vector<int> members = rank() == 1 ? std::vector<int>{1} : std::vector<int>{2, 0};
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> part, all->Split(members, Gather));
    EXPECT_EQ(part->size(), rank() == 1 ? 1 : 2);
    EXPECT_EQ(part->rank(), rank() == 0 ? 1 : 0);
    EXPECT_OK(ExchangeTexts(*part, 5000));
    part->Tell({.kind = Notice::Kind::kLeft});  // which no rank reads
  }
  EXPECT_OK(ExchangeTexts(*all, 5000));
}

// Regression: Open MPI ended the process when a notice of rank 2 arrived in a freed communicator, whose context a
// smaller one had reused.
TEST_F(MpiTransportTest, WhatIsLeftOfAGroupDoesNotReachTheNext) {
  for (int round = 0; round < 50; ++round) {
    {
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> all, Create());
      ASSERT_OK(ExchangeTexts(*all, 100)) << "round " << round;
    }
    const std::vector<int> members = rank() == 2 ? std::vector<int>{2} : std::vector<int>{0, 1};
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> all, Create());
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> part, all->Split(members, Gather));
    ASSERT_OK(ExchangeTexts(*part, 100)) << "round " << round;
  }
}

TEST_F(MpiTransportTest, ARankThatLeftIsAnErrorOfThoseWhoWaitForIt) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, Create());
  if (rank() == 2) {
    transport->Tell({.kind = Notice::Kind::kLeft});
  } else {
    std::string bytes(8, 'x');
    EXPECT_THAT(transport->Exchange({}, {{{2, Bytes(bytes), 8}}}, kWhat, kTimeout),
                StatusIs(absl::StatusCode::kUnavailable,
                         absl::StrCat("rank ", rank(), " of 3: all_gather #7: rank 2 (here) left the group")));
  }
  ASSERT_OK(Gather(""));
}

TEST_F(MpiTransportTest, ANoticeEndsAWait) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, Create());
  if (rank() == 1) {
    transport->Tell({.kind = Notice::Kind::kGaveUp, .sequence = 7, .reason = absl::DataLossError("bad bytes")});
  } else {
    std::string bytes(8, 'x');
    EXPECT_THAT(transport->Exchange({}, {{{2 - rank(), Bytes(bytes), 8}}}, kWhat, kTimeout),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1 (here) gave up: bad bytes")));
    EXPECT_EQ(transport->first_rank_to_give_up(), 1);
  }
  ASSERT_OK(Gather(""));
}

TEST_F(MpiTransportTest, AMissingRankIsNamedAtTheDeadline) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, Create());
  if (rank() == 0) {
    std::string bytes(8, 'x');
    EXPECT_THAT(
        transport->Exchange({}, {{{2, Bytes(bytes), 8}}}, kWhat, absl::Milliseconds(100)),
        StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 0 of 3: all_gather #7 waited 100ms; missing ranks: 2"));
    transport->AwaitSends();
  }
  ASSERT_OK(Gather(""));
}

TEST_F(MpiTransportTest, TheWatchEndsAWait) {
  bool is_lost = false;  // after all have met
  const PeerWatch watch = [&](absl::Duration) {
    return is_lost ? absl::UnavailableError("rank 2 (host-b, pid 5) is gone") : absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, Create({.place = "here", .watch = watch}));
  is_lost = true;
  if (rank() != 2) {
    std::string bytes(8, 'x');
    EXPECT_THAT(transport->Exchange({}, {{{2, Bytes(bytes), 8}}}, kWhat, kTimeout),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2 (host-b, pid 5) is gone")));
  }
  ASSERT_OK(Gather(""));
}

TEST_F(MpiTransportTest, AMessageThatIsNotReceivedYetDoesNotBlock) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, Create());
  const int64_t nbytes = 8 << 20;
  std::string bytes(nbytes, rank() == 0 ? 'x' : '-');
  if (rank() == 0) {
    const absl::Time start = absl::Now();
    EXPECT_THAT(transport->Exchange({{{1, Bytes(bytes), nbytes}}}, {}, kWhat, absl::Milliseconds(100)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing ranks: 1")));
    transport->AwaitSends();
    EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  }
  ASSERT_OK(Gather(""));
  // MPI still uses it.
  if (rank() == 0) {
    for (int i = 0; i < 20; ++i) transport->AwaitSends();
  } else if (rank() == 1) {
    EXPECT_OK(transport->Exchange({}, {{{0, Bytes(bytes), nbytes}}}, kWhat, kTimeout));
    EXPECT_EQ(bytes, std::string(nbytes, 'x'));
  }
  ASSERT_OK(Gather(""));
}

TEST_F(MpiTransportTest, AMessageOfAnotherSizeIsAnError) {
  for (const int64_t sent : {3, 9}) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Transport> transport, Create());
    std::string bytes(16, 'x');
    if (rank() == 0) {
      EXPECT_OK(transport->Exchange({{{1, Bytes(bytes), sent}}}, {}, kWhat, kTimeout));
    } else if (rank() == 1) {
      const std::string wanted =
          sent == 3 ? "rank 0 sent 3 bytes, wanted 8" : "rank 0 sent more than 8 bytes, wanted 8";
      EXPECT_THAT(transport->Exchange({}, {{{0, Bytes(bytes), 8}}}, kWhat, kTimeout),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1 of 3: all_gather #7: " + wanted)));
    }
    ASSERT_OK(Gather(""));
  }
}

TEST_F(MpiTransportTest, EveryRankGetsTheAddressOfTheJobsRank0) {
  ASSERT_OK_AND_ASSIGN(const std::string address,
                       AddressOverMpi(2 - rank(), 3, rank() == 2 ? "host-c 29500" : absl::StrCat("not of ", rank())));
  EXPECT_EQ(address, "host-c 29500");
}

TEST_F(MpiTransportTest, AJobThatIsLargerThanMpisWorldIsRefused) {
  EXPECT_THAT(AddressOverMpi(0, 4, ""),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0 of 4 is in an MPI_COMM_WORLD of 3 ranks, wanted one of at least 4")));
  const BlobGather doubled = [](std::string_view blob) -> absl::StatusOr<std::vector<std::string>> {
    FSDP_ASSIGN_OR_RETURN(std::vector<std::string> blobs, Gather(blob));
    blobs[2] = blobs[0];
    return blobs;
  };
  EXPECT_THAT(CreateMpiTransport(rank(), 3, {}, doubled),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("ranks 0 and 2 of 3 are both rank 0 of MPI_COMM_WORLD")));
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // for MPICH: see mpi_library.h
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  const int status = RUN_ALL_TESTS();
  MPI_Finalize();
  return status;
}
