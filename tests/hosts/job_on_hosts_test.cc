// SPDX-License-Identifier: Apache-2.0
//
// A job of four ranks on two hosts: how they meet, and what each rank reports when a rank, a host or a link is lost.
// The heartbeats are the production values.
#include <map>
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

using Environment = std::map<std::string, std::string>;

constexpr int kWorldSize = 4;
constexpr absl::Duration kLong = absl::Seconds(60);

// The time that a machine with all cores busy adds to any of the times below. Without the end of its connection a death
// would be noticed only by silence, which takes 10 s.
constexpr absl::Duration kLoaded = absl::Seconds(3);

int HostOf(int rank) { return rank / 2; }

Environment OfTorchrun(int rank, const std::string& master) {
  return {{"RANK", absl::StrCat(rank)},
          {"WORLD_SIZE", absl::StrCat(kWorldSize)},
          {"LOCAL_RANK", absl::StrCat(rank % 2)},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", master},
          {"MASTER_PORT", "29500"}};
}

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

  // Starts a rank in each of `environments`, by rank; each meets the others and leaves.
  void ExpectThatTheyMeet(const std::vector<Environment>& environments) {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ChildOptions options;
      options.environment = environments[rank];
      ASSERT_OK_AND_ASSIGN(auto started, hosts_->Start(HostOf(rank), {program_, "meet"}, options));
      ranks_.push_back(std::move(started));
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      EXPECT_THAT(ranks_[rank]->Wait(kLong), IsOkAndHolds(kExitDone)) << ranks_[rank]->output();
      EXPECT_THAT(ranks_[rank]->output(), HasSubstr(" met host-a host-a host-b host-b\n"));
    }
  }

  // Starts all ranks as torchrun's agents would, and waits until they have met.
  void StartWatching() {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ChildOptions options;
      options.environment = OfTorchrun(rank, Hosts::Address(0));
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

  // Waits until each of `ranks` has printed `verdict` and ended with the status that asks for a restart.
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

// A launcher that is restarted too early, or with the port of another job, is to be restarted again.
TEST_F(JobOnHostsTest, ALauncherWithoutItsPortNamesTheHolderAndAsksForARestart) {
  ASSERT_OK_AND_ASSIGN(const std::string launch, FindRunfile("tools/launch"));
  StartWatching();
  const std::string holder = absl::StrCat("(rank 0 of 4, pid ", PidOf(0), " on host-a) holds it");
  for (const auto& [master, text] : Environment{{Hosts::Address(0), holder}, {"no-such-host", "cannot resolve"}}) {
    ASSERT_OK_AND_ASSIGN(
        const auto launcher,
        hosts_->Start(0, {launch, "--nnodes=2", "--node_rank=0", absl::StrCat("--master_addr=", master),
                          "--master_port=29500", "--nproc=2", "--", program_, "meet"}));
    EXPECT_THAT(launcher->Wait(kLong), IsOkAndHolds(kExitRestart)) << launcher->output();
    EXPECT_THAT(launcher->output(), HasSubstr(text));
  }
}

TEST_F(JobOnHostsTest, RanksMeetAtANameThatRank0sHostKnowsAsALoopbackAddress) {
  std::vector<Environment> environments;
  for (int rank = 0; rank < kWorldSize; ++rank) environments.push_back(OfTorchrun(rank, "host-a"));
  ExpectThatTheyMeet(environments);
}

// torchrun's c10d rendezvous may place rank 0 on another host than the store's.
TEST_F(JobOnHostsTest, RanksMeetThroughTorchrunsAgentWhicheverHostItIsOn) {
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("tests/hosts/fake_agent"));
  for (const int host : {0, 1}) {
    ASSERT_OK_AND_ASSIGN(const auto agent, hosts_->Start(host, {program, "0.0.0.0", "29500"}));
    ASSERT_OK(agent->WaitForOutput("ready", kLong));
    std::vector<Environment> environments;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      environments.push_back(OfTorchrun(rank, Hosts::Name(host)));
      environments.back()["TORCHELASTIC_USE_AGENT_STORE"] = "True";
      environments.back()["TORCHELASTIC_RUN_ID"] = "none";
      environments.back()["TORCHELASTIC_RESTART_COUNT"] = absl::StrCat(HostOf(rank));  // each agent's own
    }
    ExpectThatTheyMeet(environments);
    ranks_.clear();
  }
}

// Nothing in their environment shows that they are on several hosts.
TEST_F(JobOnHostsTest, RanksThatKnowNoMoreThanTheirNumbersMeet) {
  std::vector<Environment> environments;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    environments.push_back(OfTorchrun(rank, Hosts::Name(0)));
    environments.back().erase("LOCAL_RANK");
    environments.back().erase("LOCAL_WORLD_SIZE");
  }
  ExpectThatTheyMeet(environments);
}

TEST_F(JobOnHostsTest, TheTasksOfASlurmStepMeetAtAPortThatFollowsFromItsName) {
  std::vector<Environment> environments;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    environments.push_back({{"SLURM_PROCID", absl::StrCat(rank)},
                            {"SLURM_NTASKS", absl::StrCat(kWorldSize)},
                            {"SLURM_LOCALID", absl::StrCat(rank % 2)},
                            {"SLURM_NODEID", absl::StrCat(HostOf(rank))},
                            {"SLURM_STEP_NUM_NODES", "2"},
                            {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                            {"SLURM_STEP_NODELIST", "host-[a,b]"},
                            {"SLURM_JOB_ID", "77"},
                            {"SLURM_STEP_ID", "0"}});
  }
  ExpectThatTheyMeet(environments);
}

TEST_F(JobOnHostsTest, TheRanksOfMpirunMeetAtTheMasterThatItPassesOn) {
  std::vector<Environment> environments;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    environments.push_back({{"OMPI_COMM_WORLD_RANK", absl::StrCat(rank)},
                            {"OMPI_COMM_WORLD_SIZE", absl::StrCat(kWorldSize)},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", absl::StrCat(rank % 2)},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"MASTER_ADDR", "host-a"},
                            {"MASTER_PORT", "29500"}});
  }
  ExpectThatTheyMeet(environments);
}

TEST_F(JobOnHostsTest, ARankThatIsKilledIsNamedOnBothHostsWithinASecond) {
  StartWatching();
  const std::string lost = NameOf(3);
  ASSERT_OK(hosts_->KillProcess(1, PidOf(3)));
  const absl::Time killed = absl::Now();
  ExpectVerdict({0, 1, 2}, absl::StrCat(lost, " is gone"));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(1) + kLoaded);
}

TEST_F(JobOnHostsTest, AHostThatIsKilledIsNamedWithItsRanksWithinTwoSeconds) {
  StartWatching();
  const absl::Time killed = absl::Now();
  hosts_->Kill(1);
  ExpectVerdict({0, 1}, "host-b (ranks 2, 3) is gone");
  EXPECT_LT(absl::Now() - killed, absl::Seconds(2) + kLoaded);
}

// Each host misses the other: the one with rank 0 names the ranks of the other, which name rank 0.
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
  EXPECT_LT(absl::Now() - cut, absl::Seconds(12) + kLoaded);
  ExpectVerdict({2, 3},
                absl::StrCat(server.substr(0, server.size() - 1), "), which serves the job's store, does not answer"));
  EXPECT_LT(absl::Now() - cut, absl::Seconds(13) + kLoaded) << "a second for the end of the processes of host-a";
}

TEST_F(JobOnHostsTest, WhenRank0IsKilledTheOthersNameIt) {
  StartWatching();
  const std::string lost = NameOf(0);
  ASSERT_OK(hosts_->KillProcess(0, PidOf(0)));
  ExpectVerdict({1, 2, 3}, absl::StrCat(lost, ", which serves the job's store, is gone"));
}

}  // namespace
}  // namespace fsdp
