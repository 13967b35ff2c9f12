// SPDX-License-Identifier: Apache-2.0
//
// Kills a process (kill -9) at random instants while it works on checkpoints: every step-* directory verifies at all
// times, and the next process completes unfinished work and removes leftovers.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

const std::vector<TestTensor> kTensors = {{StateKey::Model("wte.weight"), DType::kFloat32, {300, 1000}}};

absl::Status Save(const std::string& root, int64_t step, const SaveOptions& options) {
  return RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(ShardedState(kTensors, 2, group->rank()), root, step, *group, options).status();
  });
}

absl::Status Verify(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const VerifyReport report, VerifyCheckpoint(path));
  return report.problems.empty() ? absl::OkStatus() : absl::DataLossError(report.problems[0]);
}

// The number of kills per test: many in the longer target, else few.
int Rounds() {
  const char* const rounds = std::getenv("KILL_ROUNDS");
  return rounds == nullptr ? 6 : std::atoi(rounds);
}

// Runs `work` with 0, 1, 2, ... in its own process, and kills it some milliseconds after it has completed 0, in each
// round at another instant.
void KillAtWork(const std::function<absl::Status(int64_t i)>& work, int round) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int64_t i = 0;; ++i) {
      Check(work(i).ok(), "the child failed");
      if (i == 0) Check(write(fds[1], "1", 1) == 1, "the parent is gone");
    }
  }
  pollfd ready = {fds[0], POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 60000), 1);
  (void)poll(nullptr, 0, 1 + 7 * round % 97);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  close(fds[0]);
  close(fds[1]);
}

// Kills `work` Rounds() times, and calls `check` after each.
void KillAndCheck(const std::function<absl::Status(int64_t i)>& work, const std::function<void()>& check) {
  for (int round = 0; round < Rounds() && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    KillAtWork(work, round);
    check();
  }
  std::printf("killed at work: %d\n", Rounds());
}

void ExpectAllVerify(const std::string& root) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> steps, ListCheckpoints(root));
  EXPECT_FALSE(steps.empty());
  for (const std::string& step : steps) EXPECT_OK(Verify(JoinPath(root, step)));
}

void ExpectOnlySteps(const std::string& root) {
  for (const std::string& name : ListNames(root)) EXPECT_TRUE(ParseStepName(name).has_value()) << name;
}

TEST(KillTest, ASaveOverAnotherLeavesOldOrNew) {
  const std::string root = NewTestDirectory();
  KillAndCheck([&](int64_t i) { return Save(root, i % 2 + 1, {.overwrite = true}); }, [&] { ExpectAllVerify(root); });
  ASSERT_OK(Save(root, 3, {}));
  ExpectOnlySteps(root);
}

TEST(KillTest, IncrementalSavesWithParityAndPruningLeaveWholeSteps) {
  const std::string root = NewTestDirectory();
  const auto save_next = [&](int64_t) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(root));
    SaveOptions options = {.parity = 1};
    if (!steps.empty()) options.base = JoinPath(root, steps.back());
    const int64_t next = steps.empty() ? 1 : *ParseStepName(steps.back()) + 1;
    FSDP_RETURN_IF_ERROR(Save(root, next, options));
    return PruneCheckpoints(root, 2);
  };
  KillAndCheck(save_next, [&] { ExpectAllVerify(root); });
  ASSERT_OK(save_next(0));
  ExpectOnlySteps(root);
  EXPECT_EQ(ListNames(root).size(), 2u);
}

TEST(KillTest, ARepairThatIsDoneAgainGivesTheSameBytes) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(Save(root, 1, {.parity = 1}));
  const std::string path = JoinPath(root, StepName(1));
  std::map<std::string, std::string> good;
  for (const std::string& name : ListNames(path)) good[name] = ReadFile(JoinPath(path, name));
  const auto lose_and_repair = [&](int64_t) -> absl::Status {
    for (const char* name : {"manifest.json", "checkpoint.h5", "rank-00001-of-00002.h5"}) {
      fs::remove(JoinPath(path, name));
    }
    return RepairCheckpoint(path).status();
  };
  KillAndCheck(lose_and_repair, [&] {
    ASSERT_OK_AND_ASSIGN(const RepairReport report, RepairCheckpoint(path));
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_EQ(ListNames(path).size(), good.size());
    for (const auto& [name, bytes] : good) EXPECT_TRUE(ReadFile(JoinPath(path, name)) == bytes) << name;
  });
}

TEST(KillTest, AConversionOverAnotherLeavesOldOrNew) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(Save(root, 1, {}));
  const std::string converted = root + "/converted";
  const auto convert = [&](int64_t i) {
    ConvertOptions options;
    options.target = i % 2 == 0 ? Hdf5Target{.type = StateDictType::kSharded, .parity = 1} : Hdf5Target();
    options.force = true;
    return ConvertCheckpoint(JoinPath(root, StepName(1)), converted, options).status();
  };
  KillAndCheck(convert, [&] { EXPECT_OK(Verify(converted)); });
  ASSERT_OK(convert(0));
  EXPECT_THAT(ListNames(root), testing::ElementsAre("converted", "step-00000001"));
}

}  // namespace
}  // namespace fsdp
