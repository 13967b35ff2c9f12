// SPDX-License-Identifier: Apache-2.0
//
// Failures of this machine while a checkpoint that is whole is read: too many open files, no memory, no permission, a
// stale handle. At each system call in turn, once or from then on, for all that tells good checkpoints from bad ones:
// none of them speaks of damage, and nothing is repaired. (The queue of reads knows only EIO, which is damage.)
#include "fsdp/checkpoint/storage/unread.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/system_call_faults.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Kind = SystemCallFaults::Kind;

class UnreadTest : public testing::TestWithParam<int> {
 protected:
  UnreadTest() {
    for (const int64_t step : {1, 2}) {
      EXPECT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
        StateDict state =
            ShardedState({{StateKey::Model("wte.weight"), DType::kFloat32, {step, 300}}}, 2, group->rank());
        return SaveCheckpoint(state, root_, step, *group, {.parity = 1}).status();
      }));
    }
  }

  std::string Newest() const { return JoinPath(root_, StepName(2)); }

  static bool IsOfTheMedium(const std::string& text) { return absl::StrContains(text, std::strerror(EIO)); }
  std::string Cause() const { return std::strerror(GetParam()); }

  // Runs `read` with the fault at each of its calls in turn.
  void AtEveryCall(const std::function<void()>& read) {
    SystemCallFaults::Begin(Kind::kFail, 0, GetParam());
    read();
    const int64_t calls = SystemCallFaults::End();
    ASSERT_GT(calls, 10);
    for (const Kind kind : {Kind::kFail, Kind::kFailFrom}) {
      for (int64_t k = 1; k <= calls; ++k) {
        SCOPED_TRACE(absl::StrCat(Cause(), kind == Kind::kFail ? " at call " : " from call ", k));
        SystemCallFaults::Begin(kind, k, GetParam());
        read();
        SystemCallFaults::End();
      }
    }
  }

  const std::string root_ = NewTestDirectory();
};

TEST_P(UnreadTest, VerificationNamesTheCauseAndNoDamage) {
  int64_t unread = 0;
  AtEveryCall([&] {
    const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(Newest());
    if (!report.ok()) {
      EXPECT_TRUE(IsUnread(report.status())) << report.status();
      EXPECT_THAT(std::string(report.status().message()), HasSubstr(Cause()));
      return;
    }
    for (const std::string& problem : report->unread) EXPECT_THAT(problem, HasSubstr(Cause()));
    unread += static_cast<int64_t>(report->unread.size());
    if (std::any_of(report->problems.begin(), report->problems.end(), IsOfTheMedium)) return;
    EXPECT_FALSE(report->is_damaged()) << report->status();
    EXPECT_THAT(report->damage, IsEmpty());
  });
  EXPECT_GT(unread, 0);
}

// A process that has too little of something would always fall back; another error may concern the newest step only.
TEST_P(UnreadTest, ASearchFallsBackWithTheReasonAndNotForWantOfDescriptors) {
  const bool is_want = absl::IsResourceExhausted(absl::ErrnoToStatus(GetParam(), ""));
  AtEveryCall([&] {
    std::vector<std::string> skipped;
    const absl::StatusOr<std::string> newest = LatestCheckpoint(root_, &skipped);
    const std::string said = newest.ok() ? (skipped.empty() ? "" : skipped[0]) : std::string(newest.status().message());
    if (newest.ok() && *newest == Newest()) {
      EXPECT_THAT(skipped, IsEmpty());
    } else if (!IsOfTheMedium(said)) {
      EXPECT_THAT(said, HasSubstr(Cause()));
      EXPECT_FALSE(absl::StrContains(said, "does not verify")) << said;
      EXPECT_FALSE(newest.ok() && is_want) << said;
    }
  });
}

// Whether an entry under a name of its own is a step, only its manifest says.
TEST_P(UnreadTest, AnOlderStepUnderANameOfItsOwnIsNotTakenWithoutTheReason) {
  const std::string root = NewTestDirectory();
  for (const int64_t step : {1, 2}) {
    EXPECT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
      const StateDict state = ShardedState({{StateKey::Model("wte.weight"), DType::kFloat32, {step}}}, 1, 0);
      return SaveCheckpoint(state, root, step, *group, {.name = absl::StrCat("checkpoint-", step)}).status();
    }));
  }
  AtEveryCall([&] {
    std::vector<std::string> skipped;
    const absl::StatusOr<std::string> newest = LatestCheckpoint(root, &skipped);
    if (newest.ok() && *newest == root + "/checkpoint-2") return;
    const std::string said = newest.ok() ? absl::StrJoin(skipped, "; ") : std::string(newest.status().message());
    EXPECT_THAT(said, testing::AnyOf(HasSubstr(Cause()), HasSubstr(std::strerror(EIO)))) << newest.status();
  });
}

TEST_P(UnreadTest, ARepairChangesNothing) {
  std::map<std::string, std::string> good;
  for (const std::string& name : ListNames(Newest())) good[name] = ReadFile(JoinPath(Newest(), name));
  AtEveryCall([&] {
    const absl::StatusOr<RepairReport> report = RepairCheckpoint(Newest(), {.io_threads = 1});
    if (!report.ok()) {
      EXPECT_THAT(std::string(report.status().message()),
                  testing::AnyOf(HasSubstr(Cause()), HasSubstr(std::strerror(EIO))));
      return;
    }
    for (const std::string& sentence : report->repaired) EXPECT_TRUE(IsOfTheMedium(sentence)) << sentence;
    for (const std::string& sentence : report->problems) EXPECT_TRUE(IsOfTheMedium(sentence)) << sentence;
  });
  std::map<std::string, std::string> found;
  for (const std::string& name : ListNames(Newest())) found[name] = ReadFile(JoinPath(Newest(), name));
  EXPECT_EQ(found, good);
}

INSTANTIATE_TEST_SUITE_P(Causes, UnreadTest, testing::Values(EMFILE, ENFILE, ENOMEM, EACCES, ESTALE, ETIMEDOUT),
                         [](const testing::TestParamInfo<int>& info) { return absl::StrCat("Errno", info.param); });

}  // namespace
}  // namespace fsdp
