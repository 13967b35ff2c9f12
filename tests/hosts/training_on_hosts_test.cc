// SPDX-License-Identifier: Apache-2.0
//
// train_gpt on two hosts of two ranks each: the losses of one host, and the end of a run that loses a rank, host, link
// or shared directory. The hosts are namespaces of this machine (hosts.h) that share its disk.
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/exit_code.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/tests/hosts/hosts.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kLong = absl::Seconds(120);

// SmallRun without its --nproc: the launchers set the number of ranks.
Flags RunOfAnyRanks() {
  Flags flags = SmallRun();
  flags.erase(flags.begin());
  return flags;
}

class TrainingOnHostsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = Hosts::WhyNot(); !reason.empty()) GTEST_SKIP() << "no hosts here: " << reason;
    absl::StatusOr<std::unique_ptr<Hosts>> hosts = Hosts::Create(2);
    ASSERT_OK(hosts);
    hosts_ = *std::move(hosts);
    ASSERT_OK_AND_ASSIGN(launch_, FindRunfile("tools/launch"));
    ASSERT_OK_AND_ASSIGN(train_gpt_, FindRunfile("train/train_gpt"));
  }

  // The command that each host's user types, behind `prefix`.
  Flags Command(int host, const Flags& flags) const {
    return Flags{launch_,
                 "--nnodes=2",
                 absl::StrCat("--node_rank=", host),
                 absl::StrCat("--master_addr=", Hosts::Address(0)),
                 "--master_port=29500",
                 "--nproc=2",
                 "--",
                 train_gpt_} +
           RunOfAnyRanks() + flags;
  }

  void StartOnBoth(const Flags& flags) {
    launchers_.clear();
    for (const int host : {0, 1}) {
      absl::StatusOr<std::unique_ptr<ChildProcess>> launcher = hosts_->Start(host, Command(host, flags));
      ASSERT_OK(launcher);
      launchers_.push_back(*std::move(launcher));
    }
  }

  void TrainOnBoth(const Flags& flags) {
    StartOnBoth(flags);
    for (const auto& launcher : launchers_) {
      EXPECT_THAT(launcher->Wait(kLong), IsOkAndHolds(kExitDone)) << launcher->output();
    }
  }

  // An interface whose cable leads nowhere, like a bridge for containers that do not exist: 10.99.0.1 on host-a.
  void AddInterfaceThatLeadsNowhere() {
    for (const int host : {0, 1}) {
      ASSERT_OK_AND_ASSIGN(
          const auto made,
          hosts_->Start(host, {"sh", "-c",
                               absl::StrCat("ip link add eth1 type veth peer name end && ip addr add 10.99.0.",
                                            host + 1, "/24 dev eth1 && ip link set eth1 up && ip link set end up")}));
      EXPECT_THAT(made->Wait(kLong), IsOkAndHolds(0)) << made->output();
    }
  }

  std::string Metrics(const std::string& name) const { return absl::StrCat(directory_, "/", name, ".jsonl"); }

  const std::string directory_ = NewDirectory();
  std::unique_ptr<Hosts> hosts_;
  std::string launch_, train_gpt_;
  std::vector<std::unique_ptr<ChildProcess>> launchers_;  // by host
};

TEST_F(TrainingOnHostsTest, TwoHostsHaveTheLossesOfOneBitForBit) {
  const std::map<std::string, Flags> kinds = {
      {"full_shard", {}},
      {"fsdp2", {"--api=fsdp2", "--grad_accum=2"}},
      {"hybrid", {"--sharding_strategy=hybrid_shard", "--shard_group_size=2"}},
      {"hybrid_fsdp2", {"--sharding_strategy=hybrid_shard", "--shard_group_size=2", "--api=fsdp2"}},
      {"bfloat16", {"--param_dtype=bfloat16", "--reduce_dtype=bfloat16"}},
  };
  for (const auto& [name, kind] : kinds) {
    const Flags flags = kind + Flags{"--steps=5"};
    ASSERT_OK_AND_ASSIGN(
        const ProgramResult one_host,
        Train(RunOfAnyRanks() + flags + Flags{"--nproc=4", "--metrics=" + Metrics(name + "-one_host")}));
    ASSERT_EQ(one_host.exit_status, kExitDone) << one_host.output;
    TrainOnBoth(flags + Flags{"--metrics=" + Metrics(name)});
    ASSERT_OK_AND_ASSIGN(const auto expected, MetricsByStep(Metrics(name + "-one_host")));
    ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(Metrics(name)));
    ASSERT_EQ(actual.size(), 5u);
    for (const auto& [step, wanted] : expected) {
      EXPECT_EQ(actual.at(step).loss, wanted.loss) << name << ", step " << step;
      EXPECT_EQ(actual.at(step).grad_norm, wanted.grad_norm) << name << ", step " << step;
    }
  }
}

// The shard groups then have the size of the hosts, under both interfaces; on one host, the size of the job.
TEST_F(TrainingOnHostsTest, HybridShardWithoutASizeShardsInsideAHostAndReplicatesBetweenHosts) {
  for (const char* const api : {"--api=fsdp1", "--api=fsdp2"}) {
    const Flags flags = {"--sharding_strategy=hybrid_shard", "--steps=5", api};
    TrainOnBoth(flags + Flags{"--metrics=" + Metrics("by_hosts")});
    EXPECT_THAT(launchers_[0]->output(), HasSubstr("4 ranks on 2 hosts with 2 ranks each\n"));
    TrainOnBoth(flags + Flags{"--shard_group_size=2", "--metrics=" + Metrics("by_size")});
    ASSERT_OK_AND_ASSIGN(const auto expected, MetricsByStep(Metrics("by_size")));
    ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(Metrics("by_hosts")));
    ASSERT_EQ(actual.size(), 5u);
    for (const auto& [step, wanted] : expected) {
      EXPECT_EQ(actual.at(step).loss, wanted.loss) << api << ", step " << step;
      EXPECT_EQ(actual.at(step).grad_norm, wanted.grad_norm) << api << ", step " << step;
    }
  }
}

// FSDP_HOSTID makes two hosts of one, with 2 and 1 ranks.
TEST_F(TrainingOnHostsTest, HostsWithUnequallyManyRanksTrainFlatAndHybridShardNeedsASizeThere) {
  const auto start = [&](const Flags& flags) {
    return hosts_->Start(
        0, Flags{launch_, "--nproc=3", "--", "sh", "-c", "FSDP_HOSTID=$((RANK / 2)) exec \"$@\"", "sh", train_gpt_} +
               RunOfAnyRanks() + flags + Flags{"--steps=2"});
  };
  ASSERT_OK_AND_ASSIGN(const auto flat, start({}));
  EXPECT_THAT(flat->Wait(kLong), IsOkAndHolds(kExitDone)) << flat->output();
  EXPECT_THAT(flat->output(),
              HasSubstr("3 ranks on 2 hosts with 2, 1 ranks: host-a has ranks 0, 1; host-a has rank 2"));
  EXPECT_THAT(flat->output(), HasSubstr("collectives between all ranks are flat"));
  for (const char* const api : {"--api=fsdp1", "--api=fsdp2"}) {
    ASSERT_OK_AND_ASSIGN(const auto refused, start({"--sharding_strategy=hybrid_shard", api}));
    EXPECT_THAT(refused->Wait(kLong), IsOkAndHolds(testing::Ne(kExitDone)));
    EXPECT_THAT(refused->output(), HasSubstr("there are 2 hosts with 2, 1 ranks: "));
    EXPECT_THAT(refused->output(), HasSubstr("give the size of the shard groups"));
  }
}

TEST_F(TrainingOnHostsTest, ALinkThatLosesOnePacketInAHundredAndTakes50MillisecondsIsNoFault) {
  const Link link = {.delay = absl::Milliseconds(25), .loss = 0.01};
  if (const std::string reason = Hosts::WhyNot(link); !reason.empty()) GTEST_SKIP() << "no such link: " << reason;
  const Flags flags = {"--steps=3"};
  ASSERT_OK_AND_ASSIGN(const ProgramResult one_host,
                       Train(RunOfAnyRanks() + flags + Flags{"--nproc=4", "--metrics=" + Metrics("expected")}));
  ASSERT_EQ(one_host.exit_status, kExitDone) << one_host.output;
  hosts_.reset();
  ASSERT_OK_AND_ASSIGN(hosts_, Hosts::Create(2, link));
  TrainOnBoth(flags + Flags{"--metrics=" + Metrics("actual")});
  ASSERT_OK_AND_ASSIGN(const auto expected, MetricsByStep(Metrics("expected")));
  ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(Metrics("actual")));
  ASSERT_EQ(actual.size(), 3u);
  for (const auto& [step, wanted] : expected) EXPECT_EQ(actual.at(step).loss, wanted.loss) << "step " << step;
}

// base/fake_clock.cc: an hour ahead of the other host, then an hour behind, every 10 ms.
TEST_F(TrainingOnHostsTest, AHostWhoseClockJumpsByHoursIsNoFault) {
  const Flags flags = {"--steps=5"};
  ASSERT_OK_AND_ASSIGN(const ProgramResult one_host,
                       Train(RunOfAnyRanks() + flags + Flags{"--nproc=4", "--metrics=" + Metrics("expected")}));
  ASSERT_EQ(one_host.exit_status, kExitDone) << one_host.output;
  ASSERT_OK_AND_ASSIGN(const std::string fake_clock, FindRunfile("base/libfake_clock.so"));
  const std::string root = directory_ + "/steps";
  for (const int jumping : {0, 1}) {
    const Flags saved = flags + Flags{"--checkpoint_dir=" + root, "--checkpoint_every=1", "--keep_last=2",
                                      "--async_checkpoint", absl::StrCat("--metrics=", Metrics("actual"))};
    launchers_.clear();
    for (const int host : {0, 1}) {
      const Flags prefix = host == jumping ? Flags{"env", "LD_PRELOAD=" + fake_clock} : Flags{};
      ASSERT_OK_AND_ASSIGN(auto launcher, hosts_->Start(host, prefix + Command(host, saved)));
      launchers_.push_back(std::move(launcher));
    }
    for (const auto& launcher : launchers_) {
      EXPECT_THAT(launcher->Wait(kLong), IsOkAndHolds(kExitDone)) << launcher->output();
    }
    EXPECT_THAT(LatestCheckpoint(root), IsOkAndHolds(root + "/step-00000005"));
    ASSERT_OK_AND_ASSIGN(const auto expected, MetricsByStep(Metrics("expected")));
    ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(Metrics("actual")));
    ASSERT_EQ(actual.size(), 5u);
    for (const auto& [step, wanted] : expected) {
      EXPECT_EQ(actual.at(step).loss, wanted.loss) << "step " << step;
      EXPECT_GT(actual.at(step).tokens_per_second, 0) << "step " << step;
    }
    std::filesystem::remove_all(root);
  }
}

TEST_F(TrainingOnHostsTest, AHostThatIsLostIsNamedAndTheOtherGoesOnAndBothGoOnWhenItReturns) {
  const Flags saved = {"--global_batch=4", "--checkpoint_dir=" + directory_ + "/steps", "--checkpoint_every=1"};
  ASSERT_OK_AND_ASSIGN(const ProgramResult undisturbed,
                       Train(RunOfAnyRanks() + Flags{"--nproc=4", "--steps=60", "--metrics=" + Metrics("expected")}));
  ASSERT_EQ(undisturbed.exit_status, kExitDone) << undisturbed.output;
  const Flags measured = saved + Flags{"--metrics=" + Metrics("actual")};

  StartOnBoth(measured + Flags{"--steps=4000"});
  ASSERT_OK(WaitForStep(Metrics("actual"), 4));
  hosts_->Kill(1);
  const absl::Time killed = absl::Now();
  EXPECT_THAT(launchers_[0]->Wait(kLong), IsOkAndHolds(kExitRestart)) << launchers_[0]->output();
  EXPECT_LT(absl::Now() - killed, absl::Seconds(5));
  EXPECT_THAT(launchers_[0]->output(), HasSubstr("host-b (ranks 2, 3) is gone"));

  ASSERT_OK_AND_ASSIGN(const auto before, MetricsByStep(Metrics("actual")));
  const int64_t more = before.rbegin()->first + 4;
  ASSERT_LT(more + 4, 60);
  ASSERT_OK_AND_ASSIGN(const auto alone, hosts_->Start(0, Flags{train_gpt_, "--nproc=2"} + RunOfAnyRanks() + measured +
                                                              Flags{absl::StrCat("--steps=", more)}));
  EXPECT_THAT(alone->Wait(kLong), IsOkAndHolds(kExitDone)) << alone->output();
  EXPECT_THAT(alone->output(), HasSubstr("training with 2 ranks, 4 rows a step in 2 micro-steps"));

  launchers_.clear();
  hosts_.reset();
  ASSERT_OK_AND_ASSIGN(hosts_, Hosts::Create(2));
  TrainOnBoth(measured + Flags{absl::StrCat("--steps=", more + 4)});

  ASSERT_OK_AND_ASSIGN(const auto expected, MetricsByStep(Metrics("expected")));
  ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(Metrics("actual")));
  ASSERT_EQ(static_cast<int64_t>(actual.size()), more + 4);
  for (const auto& [step, metrics] : actual) {
    EXPECT_NEAR(metrics.loss, expected.at(step).loss, 1e-6 * expected.at(step).loss) << "step " << step;
  }
}

TEST_F(TrainingOnHostsTest, ARankThatIsKilledIsNamedWithItsHostByTheOtherHost) {
  StartOnBoth({"--steps=4000", "--metrics=" + Metrics("run")});
  ASSERT_OK(WaitForStep(Metrics("run"), 2));
  ASSERT_OK_AND_ASSIGN(const auto kill, hosts_->Start(1, {"sh", "-c",
                                                          "for p in $(pgrep -x train_gpt); do "
                                                          "grep -qz '^RANK=3$' /proc/$p/environ && kill -9 $p; done"}));
  const absl::Time killed = absl::Now();
  EXPECT_THAT(launchers_[0]->Wait(kLong), IsOkAndHolds(kExitRestart)) << launchers_[0]->output();
  EXPECT_LT(absl::Now() - killed, absl::Seconds(5));
  // Its launcher ends the other rank of its host, maybe before that rank reports the loss of the first.
  EXPECT_THAT(launchers_[0]->output(),
              AnyOf(HasSubstr("rank 3 (host-b, pid "), HasSubstr("host-b (ranks 2, 3) is gone")));
  EXPECT_THAT(launchers_[1]->Wait(kLong), IsOkAndHolds(128 + SIGKILL)) << launchers_[1]->output();
}

TEST_F(TrainingOnHostsTest, ALinkThatIsDownFor3SecondsIsNoFaultAndOneThatStaysDownIsNamed) {
  StartOnBoth({"--steps=100000", "--metrics=" + Metrics("run")});
  ASSERT_OK(WaitForStep(Metrics("run"), 2));
  ASSERT_OK(hosts_->CutLink(1));
  absl::SleepFor(absl::Seconds(3));
  ASSERT_OK(hosts_->RestoreLink(1));
  ASSERT_OK_AND_ASSIGN(const auto metrics, MetricsByStep(Metrics("run")));
  ASSERT_OK(WaitForStep(Metrics("run"), metrics.rbegin()->first + 5));

  ASSERT_OK(hosts_->CutLink(1));
  const absl::Time cut = absl::Now();
  for (const auto& launcher : launchers_) {
    EXPECT_THAT(launcher->Wait(kLong), IsOkAndHolds(kExitRestart)) << launcher->output();
  }
  EXPECT_LT(absl::Now() - cut, absl::Seconds(20));
  EXPECT_THAT(launchers_[0]->output(), HasSubstr("host-b (ranks 2, 3) does not answer"));
  EXPECT_THAT(launchers_[1]->output(), HasSubstr("rank 0 (host-a, "));
}

TEST_F(TrainingOnHostsTest, ANetworkThatDoesNotJoinTheHostsIsNamedWithTheAddressesOfTwo) {
  AddInterfaceThatLeadsNowhere();
  const absl::Time start = absl::Now();
  for (const int host : {0, 1}) {
    ASSERT_OK_AND_ASSIGN(auto launcher, hosts_->Start(host, Flags{"env", "UCX_NET_DEVICES=eth1"} + Command(host, {})));
    launchers_.push_back(std::move(launcher));
  }
  for (const auto& launcher : launchers_) {
    ASSERT_OK_AND_ASSIGN(const int status, launcher->Wait(kLong));
    EXPECT_NE(status, kExitDone);
    EXPECT_THAT(launcher->output(),
                HasSubstr("rank 0 uses eth1 10.99.0.1, rank 2 uses eth1 10.99.0.2: UCX_NET_DEVICES"));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(60)) << "the rendezvous would wait 10 minutes";
}

TEST_F(TrainingOnHostsTest, MessagesGoByTheNetworkOfTheMasterAndNoPortStaysOpen) {
  AddInterfaceThatLeadsNowhere();
  StartOnBoth({"--steps=100000", "--metrics=" + Metrics("run")});
  ASSERT_OK(WaitForStep(Metrics("run"), 2));
  ASSERT_OK_AND_ASSIGN(const auto ports, hosts_->Start(1, {"ss", "-Hltn"}));
  ASSERT_OK(ports->Wait(kLong));
  EXPECT_EQ(ports->output(), "");
  ASSERT_OK_AND_ASSIGN(const auto connections, hosts_->Start(1, {"ss", "-Htn"}));
  ASSERT_OK(connections->Wait(kLong));
  EXPECT_THAT(connections->output(), HasSubstr(absl::StrCat(Hosts::Address(1), ":")));
  for (const char* const other : {"127.0.0.1:", "10.99.0.2:"}) {
    EXPECT_THAT(connections->output(), Not(HasSubstr(absl::StrCat(" ", other))));
  }
}

TEST_F(TrainingOnHostsTest, ARootThatTheHostsDoNotShareIsRefusedBeforeTheFirstStep) {
  const std::string root = directory_ + "/steps";
  const Flags flags = {"--checkpoint_dir=" + root, "--steps=2", "--metrics=" + Metrics("run")};
  ASSERT_OK_AND_ASSIGN(const auto a, hosts_->Start(0, Command(0, flags)));
  ASSERT_OK_AND_ASSIGN(const auto b,
                       hosts_->Start(1, Flags{"sh", "-c", "mkdir -p $0 && mount -t tmpfs none $0 && exec \"$@\"",
                                              directory_ + "/steps"} +
                                            Command(1, flags)));
  for (const auto& launcher : {a.get(), b.get()}) {
    ASSERT_OK_AND_ASSIGN(const int status, launcher->Wait(kLong));
    EXPECT_NE(status, kExitDone);
    EXPECT_THAT(launcher->output(), HasSubstr("rank 2 (host-b), rank 3 (host-b) of 4 ranks do not see what rank 0"));
    EXPECT_THAT(launcher->output(), HasSubstr("mount the same file system"));
  }
  EXPECT_THAT(MetricsByStep(Metrics("run")).value_or(std::map<int64_t, StepMetrics>()), testing::ElementsAre());
}

}  // namespace
}  // namespace fsdp
