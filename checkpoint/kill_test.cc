// SPDX-License-Identifier: Apache-2.0
//
// kill -9 of a process that saves, at whatever instant it happens to be: every step-* directory verifies afterwards,
// all the time, and the next save sweeps what was left.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/status_matchers.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/file_names.h"
#include "checkpoint/test_state.h"
#include "checkpoint/verify.h"
#include "collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::IsEmpty;

const std::vector<TestTensor> kTensors = {{StateKey::Model("wte.weight"), DType::kFloat32, {300, 1000}}};

absl::Status Save(const std::string& root, int64_t step) {
  return RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(ShardedState(kTensors, 2, group->rank()), root, step, *group, {.overwrite = true}).status();
  });
}

// The child: saves steps 1, 2, 1, 2, ... and says so after the first.
[[noreturn]] void SaveForever(const std::string& root, int pipe) {
  for (int64_t i = 0;; ++i) {
    Check(Save(root, i % 2 + 1).ok(), "a save failed in the child");
    if (i == 0) Check(write(pipe, "1", 1) == 1, "the parent is gone");
  }
}

TEST(KillTest, EveryStepVerifiesAfterAKillAtAnyInstant) {
  const std::string root = NewTestDirectory();
  const char* const rounds = getenv("KILL_ROUNDS");  // of the longer target
  int killed = 0;
  for (int round = 0; round < (rounds == nullptr ? 12 : std::atoi(rounds)); ++round) {
    SCOPED_TRACE(round);
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) SaveForever(root, fds[1]);
    // Wait for the first save, then some milliseconds more: each round dies elsewhere.
    pollfd ready = {fds[0], POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 60000), 1);
    (void)poll(nullptr, 0, 1 + 7 * round % 97);
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ++killed;
    close(fds[0]);
    close(fds[1]);
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> steps, ListCheckpoints(root));
    EXPECT_FALSE(steps.empty());
    for (const std::string& step : steps) {
      ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(JoinPath(root, step)));
      EXPECT_THAT(report.problems, IsEmpty());
    }
  }
  RecordProperty("killed", killed);
  ASSERT_OK(Save(root, 3));
  for (const std::string& name : ListNames(root)) EXPECT_TRUE(ParseStepName(name).has_value()) << name;
}

}  // namespace
}  // namespace fsdp
