// SPDX-License-Identifier: Apache-2.0
//
// Runs of train_gpt of which a rank or the launcher is killed, or whose loss is not finite. A run is killed while it
// trains, at any instant, since no point of a step may leave processes or shared memory behind.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/process_handle.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// The files of /dev/shm that a process has mapped: each could be left behind.
std::string SharedMemoryFilesOf(pid_t pid) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  std::string files;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/dev/shm/") != std::string::npos) files += line + "\n";
  }
  return files;
}

class RankFaultTest : public testing::Test {
 protected:
  // A run of three ranks that continues until something ends it; returns once it trains.
  std::unique_ptr<ChildProcess> StartLongRun() {
    Flags flags = SmallRun();
    flags[0] = "--nproc=3";
    auto run = StartTraining(flags + Flags{"--steps=1000000", "--metrics=" + metrics_});
    EXPECT_OK(run);
    EXPECT_OK(WaitForStep(metrics_, 2));
    return run.ok() ? *std::move(run) : nullptr;
  }

  const std::string directory_ = NewDirectory();
  const std::string metrics_ = directory_ + "/metrics.jsonl";
};

TEST_F(RankFaultTest, AKilledRankEndsTheRunAndIsNamed) {
  for (const int victim : {0, 1, 2}) {
    const auto run = StartLongRun();
    const std::map<int, pid_t> ranks = RanksOf(metrics_);
    ASSERT_THAT(ranks, SizeIs(3));
    const absl::Time killed = absl::Now();
    kill(ranks.at(victim), SIGKILL);
    ASSERT_THAT(run->Wait(absl::Seconds(20)), IsOkAndHolds(75)) << run->output();
    EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
    EXPECT_THAT(run->output(), AllOf(HasSubstr(absl::StrCat("rank ", victim, " of 3")), HasSubstr("signal 9")));
    EXPECT_THAT(Survivors(metrics_), IsEmpty());
    std::filesystem::remove(metrics_);
  }
}

// Nothing that ranks of one host share tells that one of them is stopped; docs/collectives.md promises 12 s.
TEST_F(RankFaultTest, AStoppedRankEndsTheRunAndIsNamed) {
  for (const int victim : {0, 1}) {
    const auto run = StartLongRun();
    const std::map<int, pid_t> ranks = RanksOf(metrics_);
    ASSERT_THAT(ranks, SizeIs(3));
    kill(ranks.at(victim), SIGSTOP);
    ASSERT_THAT(run->Wait(absl::Seconds(40)), IsOkAndHolds(75)) << run->output();
    EXPECT_THAT(run->output(), AllOf(HasSubstr(absl::StrCat("rank ", victim, " (")), HasSubstr("does not answer")));
    EXPECT_THAT(Survivors(metrics_), IsEmpty());
    std::filesystem::remove(metrics_);
  }
}

TEST_F(RankFaultTest, RanksNeverOutliveTheirLauncher) {
  const auto run = StartLongRun();
  const std::map<int, pid_t> ranks = RanksOf(metrics_);
  ASSERT_THAT(ranks, SizeIs(3));
  for (const auto& [rank, pid] : ranks) EXPECT_EQ(SharedMemoryFilesOf(pid), "") << "rank " << rank;
  run->Signal(SIGKILL);  // only the launcher: no process is left that could end the ranks
  ASSERT_THAT(run->Wait(absl::Seconds(10)), IsOkAndHolds(128 + SIGKILL));
  EXPECT_THAT(Survivors(metrics_), IsEmpty());
}

TEST_F(RankFaultTest, NothingIsLeftWhenEverythingIsKilledAtOnce) {
  const auto run = StartLongRun();
  for (const pid_t pid : ProcessesWith(metrics_)) kill(pid, SIGKILL);
  ASSERT_OK(run->Wait(absl::Seconds(10)).status());
  EXPECT_THAT(Survivors(metrics_), IsEmpty());
}

TEST_F(RankFaultTest, ALossThatIsNotFiniteStopsEveryRankAndKeepsWhatWasSaved) {
  const std::string checkpoint_dir = directory_ + "/checkpoints";
  const Flags saved = SmallRun() + Flags{"--checkpoint_dir=" + checkpoint_dir, "--metrics=" + metrics_};
  ASSERT_OK_AND_ASSIGN(const ProgramResult good, Train(saved + Flags{"--steps=2"}));
  ASSERT_EQ(good.exit_status, 0) << good.output;
  Flags absurd = saved + Flags{"--steps=50", "--checkpoint_every=1", "--max_grad_norm=0", "--min_lr=1e38"};
  absurd[4] = "--lr=1e38";
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(absurd));
  EXPECT_EQ(run.exit_status, 1) << run.output;
  ASSERT_OK_AND_ASSIGN(const auto metrics, MetricsByStep(metrics_));
  const int64_t bad_step = metrics.rbegin()->first + 1;
  EXPECT_THAT(run.output, HasSubstr(absl::StrCat("step ", bad_step, ": the loss of rank ")));
  EXPECT_THAT(run.output, HasSubstr("expected a finite number"));
  ASSERT_OK_AND_ASSIGN(const std::string newest, LatestCheckpoint(checkpoint_dir));
  EXPECT_THAT(CheckpointStep(newest), IsOkAndHolds(bad_step));  // the state after bad_step steps, as the loss found it
}

}  // namespace
}  // namespace fsdp
