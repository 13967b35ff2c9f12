// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/watch_roster.h"

#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);
constexpr absl::Duration kSilence = absl::Seconds(10);

absl::Time At(double seconds) { return absl::FromUnixSeconds(1000) + absl::Seconds(seconds); }

// Ranks 0 and 1 on host-a, 2 and 3 on host-b, all watched from the start.
WatchRoster FourRanks() {
  WatchRoster roster(4);
  for (int rank = 0; rank < 4; ++rank) {
    roster.Join(
        {.job = "job", .rank = rank, .world_size = 4, .host = rank < 2 ? "host-a" : "host-b", .pid = 10 + rank});
    roster.Watch(rank, kInterval, kSilence, At(0));
  }
  return roster;
}

// Does the server's work: calls Look when it is due, until `end`. Ranks other than 2 and 3 beat each second.
std::string VerdictAt(WatchRoster roster, double end) {
  for (double now = 0; now <= end; now += 0.05) {
    for (const int rank : {0, 1}) roster.Hear(rank, At(now));
    if (At(now) >= roster.NextLook()) roster.Look(At(now));
  }
  return roster.verdict();
}

TEST(WatchRosterTest, ARankWhoseProcessEndedIsNamedWithHostAndPid) {
  WatchRoster roster = FourRanks();
  roster.Lose(3, /*is_silent=*/false, At(0));
  EXPECT_EQ(VerdictAt(roster, 0.5), "rank 3 (host-b, pid 13) is gone");
}

TEST(WatchRosterTest, AHostWhoseRanksAllEndedTogetherIsNamed) {
  WatchRoster roster = FourRanks();
  roster.Lose(3, /*is_silent=*/false, At(0));
  roster.Lose(2, /*is_silent=*/false, At(0.01));
  EXPECT_EQ(VerdictAt(roster, 0.5), "host-b (ranks 2, 3) is gone");
}

TEST(WatchRosterTest, RanksThatEndBecauseOfAnotherAreNotBlamed) {
  WatchRoster roster = FourRanks();
  roster.Lose(2, /*is_silent=*/false, At(0));
  roster.Lose(1, /*is_silent=*/false, At(0.01));
  roster.Lose(0, /*is_silent=*/false, At(0.02));
  roster.Look(At(0.2));
  EXPECT_EQ(roster.verdict(), "rank 2 (host-b, pid 12) is gone");
  roster.Lose(3, /*is_silent=*/false, At(0.3));
  roster.Look(At(1));
  EXPECT_EQ(roster.verdict(), "rank 2 (host-b, pid 12) is gone") << "the verdict stays";
}

TEST(WatchRosterTest, AHostThatFallsSilentIsNamedWithin12Seconds) {
  WatchRoster roster = FourRanks();
  roster.Hear(2, At(0));
  roster.Hear(3, At(0.9));  // its heartbeats have another phase within the second
  EXPECT_EQ(VerdictAt(roster, 9.9), "");
  EXPECT_EQ(VerdictAt(roster, 11.9), "host-b (ranks 2, 3) does not answer");
}

TEST(WatchRosterTest, ARankThatIsSilentOnAHostThatIsNotIsNamed) {
  WatchRoster roster = FourRanks();
  roster.Hear(2, At(8));
  EXPECT_EQ(VerdictAt(roster, 11.9), "rank 3 (host-b, pid 13) does not answer");
}

TEST(WatchRosterTest, AConnectionWhoseHostDoesNotAcknowledgeIsSilent) {
  WatchRoster roster = FourRanks();
  roster.Lose(2, /*is_silent=*/true, At(0));
  roster.Lose(3, /*is_silent=*/true, At(1));
  EXPECT_EQ(VerdictAt(roster, 1.1), "");
  EXPECT_EQ(VerdictAt(roster, 1.5), "host-b (ranks 2, 3) does not answer");
}

TEST(WatchRosterTest, ARankThatGaveUpIsNamedWithItsReasonAtOnce) {
  WatchRoster roster = FourRanks();
  roster.GiveUp(1, "loss is not a number\x1b[2J");
  EXPECT_EQ(roster.verdict(), "rank 1 (host-a, pid 11) gave up: loss is not a number\\033[2J");
  roster.Lose(1, /*is_silent=*/false, At(0));
  roster.Look(At(1));
  EXPECT_EQ(roster.verdict(), "rank 1 (host-a, pid 11) gave up: loss is not a number\\033[2J");
}

TEST(WatchRosterTest, RanksThatLeftAreNotMissed) {
  WatchRoster roster = FourRanks();
  for (const int rank : {2, 3}) roster.Leave(rank);
  roster.Lose(2, /*is_silent=*/false, At(0));
  EXPECT_EQ(VerdictAt(roster, 100), "");
}

TEST(WatchRosterTest, RanksThatAreNotWatchedYetMayBeSilentButNotEnd) {
  WatchRoster roster(2);
  roster.Join({.job = "job", .rank = 1, .world_size = 2, .host = "host-b", .pid = 7});
  EXPECT_EQ(roster.NextLook(), absl::InfiniteFuture());
  roster.Lose(1, /*is_silent=*/false, At(0));
  roster.Look(At(1));
  EXPECT_EQ(roster.verdict(), "rank 1 (host-b, pid 7) is gone");
}

TEST(WatchRosterTest, TimeInWhichNobodyCouldListenIsNoSilence) {
  WatchRoster roster = FourRanks();
  roster.Forgive(At(3600));
  roster.Look(At(3600));
  EXPECT_EQ(roster.verdict(), "");
  roster.Look(At(3611));
  roster.Look(At(3613));
  EXPECT_NE(roster.verdict(), "");
}

TEST(WatchRosterTest, ListsOfRanksAreShort) {
  EXPECT_EQ(RankList({}), "");
  EXPECT_EQ(RankList({2}), "2");
  EXPECT_EQ(RankList({2, 3}), "2, 3");
  EXPECT_EQ(RankList({0, 8, 9, 10, 15}), "0, 8 to 10, 15");
}

}  // namespace
}  // namespace fsdp
