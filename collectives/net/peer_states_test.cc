// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/peer_states.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr CollectiveId kWhat = {.op = CollectiveOp::kAllGather, .sequence = 7};
constexpr absl::Duration kTimeout = absl::Seconds(3);
constexpr absl::Duration kNotYet = absl::Seconds(1);

PeerStates FourRanks() { return PeerStates(0, {"rank 0", "rank 1 (host-a)", "rank 2 (host-b)", "rank 3 (host-b)"}); }

Notice GaveUp(uint64_t sequence, const absl::Status& reason) {
  return {.kind = Notice::Kind::kGaveUp, .sequence = sequence, .reason = reason};
}

TEST(NoticeTest, ComesBackFromItsBytes) {
  ASSERT_OK_AND_ASSIGN(const Notice gave_up, Notice::Parse(GaveUp(1LL << 40, absl::DataLossError("bad")).ToBytes()));
  EXPECT_EQ(gave_up.kind, Notice::Kind::kGaveUp);
  EXPECT_EQ(gave_up.sequence, 1ULL << 40);
  EXPECT_EQ(gave_up.reason, absl::DataLossError("bad"));
  ASSERT_OK_AND_ASSIGN(const Notice left, Notice::Parse(Notice{}.ToBytes()));
  EXPECT_EQ(left.kind, Notice::Kind::kLeft);
}

TEST(NoticeTest, ALongTextIsCut) {
  const std::string bytes = GaveUp(1, absl::DataLossError(std::string(5000, 'x'))).ToBytes();
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), Notice::kMaxBytes);
  ASSERT_OK_AND_ASSIGN(const Notice notice, Notice::Parse(bytes));
  EXPECT_THAT(std::string(notice.reason.message()), testing::StartsWith("xxxx"));
}

TEST(NoticeTest, OtherBytesAreRefused) {
  const std::string good = GaveUp(1, absl::DataLossError("bad")).ToBytes();
  std::string kind = good;
  kind[0] = 9;
  std::string ok_code = good;
  ok_code[9] = 0;
  std::string no_code = good;
  no_code[9] = 99;
  for (const std::string& bytes : {std::string(), good.substr(0, 9), kind, ok_code, no_code, std::string(2000, 1)}) {
    EXPECT_THAT(Notice::Parse(bytes), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a notice of")));
  }
}

TEST(PeerStatesTest, NobodyIsMissedBeforeTheDeadline) {
  EXPECT_OK(FourRanks().Check(kWhat, {1, 2}, kNotYet, kTimeout));
  EXPECT_THAT(
      FourRanks().Check(kWhat, {1, 2}, kTimeout, kTimeout),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 0 of 4: all_gather #7 waited 3s; missing ranks: 1, 2"));
}

TEST(PeerStatesTest, ARankThatLeftIsMissedByThoseWhoWaitForItAlone) {
  PeerStates states = FourRanks();
  states.RecordNotice(2, {.kind = Notice::Kind::kLeft});
  EXPECT_OK(states.Check(kWhat, {1, 3}, kNotYet, kTimeout));
  EXPECT_OK(states.CheckNobodyGaveUp(kWhat));
  EXPECT_THAT(states.Check(kWhat, {1, 2}, kNotYet, kTimeout),
              StatusIs(absl::StatusCode::kUnavailable, "rank 0 of 4: all_gather #7: rank 2 (host-b) left the group"));
}

TEST(PeerStatesTest, AllLostRanksAreNamed) {
  PeerStates states = FourRanks();
  states.MarkLost(3, "connection reset");
  states.MarkLost(2, "endpoint timeout");
  EXPECT_OK(states.Check(kWhat, {1}, kNotYet, kTimeout));
  EXPECT_THAT(
      states.Check(kWhat, {3}, kNotYet, kTimeout),
      StatusIs(absl::StatusCode::kUnavailable,
               testing::AllOf(HasSubstr("rank 2 (host-b) died, or the network to it broke: endpoint timeout"),
                              HasSubstr("rank 3 (host-b) died, or the network to it broke: connection reset"))));
}

TEST(PeerStatesTest, ARankThatGaveUpReleasesAllWhoWait) {
  PeerStates states = FourRanks();
  states.RecordNotice(3, GaveUp(9, absl::DataLossError("bad bytes")));
  EXPECT_THAT(states.Check(kWhat, {1}, kNotYet, kTimeout),
              StatusIs(absl::StatusCode::kDataLoss, "rank 0 of 4: all_gather #7: rank 3 (host-b) gave up: bad bytes"));
  EXPECT_EQ(states.first_rank_to_give_up(), 3);
}

TEST(PeerStatesTest, ACollectiveThatIsOverFailsOnlyIfARankGaveUpInItOrBefore) {
  PeerStates states = FourRanks();
  states.RecordNotice(3, GaveUp(8, absl::DataLossError("bad bytes")));
  EXPECT_OK(states.CheckNobodyGaveUp(kWhat));
  EXPECT_THAT(states.CheckNobodyGaveUp({.op = CollectiveOp::kBarrier, .sequence = 8}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("barrier #8: rank 3 (host-b) gave up")));
}

TEST(PeerStatesTest, WhatIsKnownFirstStays) {
  PeerStates states = FourRanks();
  states.RecordNotice(1, {.kind = Notice::Kind::kLeft});
  states.MarkLost(1, "connection reset");
  states.RecordNotice(1, GaveUp(1, absl::DataLossError("bad bytes")));
  EXPECT_TRUE(states.has_left(1));
  EXPECT_EQ(states.first_rank_to_give_up(), -1);
}

TEST(PeerStatesTest, ANoticeReplacesALoss) {
  PeerStates states = FourRanks();
  states.MarkLost(1, "connection reset");
  states.RecordNotice(1, {.kind = Notice::Kind::kLeft});
  EXPECT_THAT(states.Check(kWhat, {1}, kNotYet, kTimeout),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 (host-a) left the group")));
  states.MarkLost(2, "connection reset");
  states.RecordNotice(2, GaveUp(1, absl::DataLossError("bad bytes")));
  EXPECT_THAT(states.Check(kWhat, {2}, kNotYet, kTimeout),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 2 (host-b) gave up: bad bytes")));
}

TEST(PeerStatesTest, TheOwnAbortIsThisRanks) {
  PeerStates states = FourRanks();
  states.RecordNotice(0, GaveUp(1, absl::CancelledError("had enough")));
  EXPECT_THAT(states.CheckNobodyGaveUp(kWhat),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("this rank gave up: had enough")));
}

}  // namespace
}  // namespace fsdp
