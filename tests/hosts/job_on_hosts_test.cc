// SPDX-License-Identifier: Apache-2.0
//
// A job of four ranks on two hosts: how they meet, and what each is told when a rank, a host or a link is lost. The
// heartbeats are those of production.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/exit_code.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tests/hosts/hosts.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

constexpr int kWorldSize = 4;
constexpr absl::Duration kLong = absl::Seconds(60);

int HostOf(int rank) { return rank / 2; }

class JobOnHostsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = Hosts::WhyNot(); !reason.empty()) GTEST_SKIP() << "no hosts here: " << reason;
    absl::StatusOr<std::unique_ptr<Hosts>> hosts = Hosts::Create(2);
    ASSERT_OK(hosts);
    hosts_ = *std::move(hosts);
    absl::StatusOr<std::string> program = FindRunfile("tests/hosts/job_rank");
    ASSERT_OK(program);
    program_ = *std::move(program);
  }

  // Starts all ranks as torchrun's agents would, and waits until they have met.
  void StartWatching() {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ChildOptions options;
      options.environment = {{"RANK", absl::StrCat(rank)},           {"WORLD_SIZE", absl::StrCat(kWorldSize)},
                             {"LOCAL_RANK", absl::StrCat(rank % 2)}, {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", Hosts::Address(0)},     {"MASTER_PORT", "29500"}};
      absl::StatusOr<std::unique_ptr<ChildProcess>> started = hosts_->Start(HostOf(rank), {program_, "watch"}, options);
      ASSERT_OK(started);
      ranks_.push_back(*std::move(started));
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ASSERT_OK(ranks_[rank]->WaitForOutput("met host-a host-a host-b host-b\n", kLong)) << ranks_[rank]->output();
    }
  }

  // The number of a rank's process on its host, from its line "rank 1 pid 4 met ...".
  int PidOf(int rank) const {
    const std::vector<std::string> words = absl::StrSplit(ranks_[rank]->output(), ' ');
    int pid = 0;
    EXPECT_TRUE(words.size() > 3 && absl::SimpleAtoi(words[3], &pid)) << ranks_[rank]->output();
    return pid;
  }

  // "rank 3 (host-b, pid 4)"
  std::string NameOf(int rank) const {
    return absl::StrCat("rank ", rank, " (", Hosts::Name(HostOf(rank)), ", pid ", PidOf(rank), ")");
  }

  // Waits until each of `ranks` has ended with the status that asks for a restart, having said `verdict`.
  void ExpectVerdict(const std::vector<int>& ranks, const std::string& verdict) {
    for (const int rank : ranks) {
      EXPECT_THAT(ranks_[rank]->Wait(kLong), IsOkAndHolds(kExitRestart));
      EXPECT_THAT(ranks_[rank]->output(), HasSubstr(absl::StrCat("rank ", rank, " verdict: ", verdict, "\n")));
    }
  }

  std::unique_ptr<Hosts> hosts_;
  std::string program_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

TEST_F(JobOnHostsTest, TheLaunchersOfTwoHostsBringTheirRanksTogether) {
  ASSERT_OK_AND_ASSIGN(const std::string launch, FindRunfile("tools/launch"));
  std::vector<std::unique_ptr<ChildProcess>> launchers;
  for (const int host : {1, 0}) {
    ASSERT_OK_AND_ASSIGN(auto launcher,
                         hosts_->Start(host, {launch, "--nnodes=2", absl::StrCat("--node_rank=", host),
                                              absl::StrCat("--master_addr=", Hosts::Address(0)), "--master_port=29500",
                                              "--nproc=2", "--", program_, "meet"}));
    launchers.push_back(std::move(launcher));
  }
  for (const std::unique_ptr<ChildProcess>& launcher : launchers) {
    EXPECT_THAT(launcher->Wait(kLong), IsOkAndHolds(kExitDone)) << launcher->output();
    EXPECT_THAT(launcher->output(), HasSubstr(" met host-a host-a host-b host-b\n"));
  }
}

TEST_F(JobOnHostsTest, ARankThatIsKilledIsNamedOnBothHostsWithinASecond) {
  StartWatching();
  const std::string lost = NameOf(3);
  ASSERT_OK(hosts_->KillProcess(1, PidOf(3)));
  const absl::Time killed = absl::Now();
  ExpectVerdict({0, 1, 2}, absl::StrCat(lost, " is gone"));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(1));
}

TEST_F(JobOnHostsTest, AHostThatIsKilledIsNamedWithItsRanksWithinTwoSeconds) {
  StartWatching();
  const absl::Time killed = absl::Now();
  hosts_->Kill(1);
  ExpectVerdict({0, 1}, "host-b (ranks 2, 3) is gone");
  EXPECT_LT(absl::Now() - killed, absl::Seconds(2));
}

// Each host misses the other: the one that has rank 0 names the ranks of the other, which name rank 0.
TEST_F(JobOnHostsTest, ALinkThatIsCutIsNamedOnBothSidesWithin12SecondsAndAShortCutIsNot) {
  StartWatching();
  ASSERT_OK(hosts_->CutLink(1));
  absl::SleepFor(absl::Seconds(3));
  ASSERT_OK(hosts_->RestoreLink(1));
  for (const std::unique_ptr<ChildProcess>& rank : ranks_) {
    EXPECT_EQ(rank->Poll(absl::Milliseconds(500)), std::nullopt) << rank->output();
  }
  const std::string server = NameOf(0);
  const absl::Time cut = absl::Now();
  ASSERT_OK(hosts_->CutLink(1));
  ExpectVerdict({0, 1}, "host-b (ranks 2, 3) does not answer");
  EXPECT_LT(absl::Now() - cut, absl::Seconds(12));
  ExpectVerdict({2, 3},
                absl::StrCat(server.substr(0, server.size() - 1), "), which serves the job's store, does not answer"));
  EXPECT_LT(absl::Now() - cut, absl::Seconds(13)) << "a second for the end of the processes of host-a";
}

TEST_F(JobOnHostsTest, WhenRank0IsKilledTheOthersNameIt) {
  StartWatching();
  const std::string lost = NameOf(0);
  ASSERT_OK(hosts_->KillProcess(0, PidOf(0)));
  ExpectVerdict({1, 2, 3}, absl::StrCat(lost, ", which serves the job's store, is gone"));
}

}  // namespace
}  // namespace fsdp
