// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/async_saver.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Overwrites every element, as the next training step would.
void Overwrite(StateDict& state) {
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    for (const ShardedTensor::Shard& shard : tensor->shards) std::memset(shard.data.data(), 0x77, shard.data.nbytes());
  }
}

void ExpectSaved(const std::string& path) {
  const std::vector<TestTensor> tensors = AwkwardTensors();
  StateDict wanted = WantedState(tensors, 1, 0);
  EXPECT_OK(LoadCheckpoint(path, wanted));
  EXPECT_OK(CheckState(tensors, wanted));
}

// The niceness of the threads of this process that digest and write, the highest first.
std::vector<int> NicenessOfWriters() {
  std::vector<int> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string name = ReadFile(task.path() / "comm");
    if (name != "checkpoint-io\n") continue;
    found.push_back(getpriority(PRIO_PROCESS, std::stoi(task.path().filename())));
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

// The same during a save, once `count` threads exist; with `waits`, while another thread waits for the save.
std::vector<int> NicenessBesideSave(AsyncSaverOptions options, size_t count, bool waits) {
  std::vector<int> seen;
  std::promise<void> looked;
  // Notes come while the save is in progress; this one is about the leftover of a crash.
  options.save.note = [&](const std::string&) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while ((seen = NicenessOfWriters()).size() < count && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    looked.set_value();
  };
  const std::string root = NewTestDirectory();
  std::filesystem::create_directory(root + "/" + DeletedName(StepName(9), NewNonce()));
  EXPECT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root, *group, options));
    FSDP_RETURN_IF_ERROR(saver->Save(StateOf(StateDictType::kSharded, AwkwardTensors(), 1, 0), 1).status());
    if (!waits) looked.get_future().wait();
    return saver->Wait().status();
  }));
  return seen;
}

TEST(AsyncSaverTest, TheThreadsThatWriteAreAsNiceAsIsAsked) {
  const int mine = getpriority(PRIO_PROCESS, 0);
  AsyncSaverOptions options;
  options.save.io_threads = 3;
  options.nice = 19;
  EXPECT_THAT(NicenessBesideSave(options, 3, /*waits=*/false), ElementsAre(19, 19, 19));
  options.nice = 0;
  EXPECT_THAT(NicenessBesideSave(options, 3, /*waits=*/false), ElementsAre(mine, mine, mine));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), mine);
}

TEST(AsyncSaverTest, AWaitLendsTheSaveItsPriority) {
  const int mine = getpriority(PRIO_PROCESS, 0);
  AsyncSaverOptions options;
  options.save.io_threads = 2;
  options.nice = 19;
  EXPECT_THAT(NicenessBesideSave(options, 4, /*waits=*/true), ElementsAre(19, 19, mine, mine));
}

// Seconds from the return of Save to the commit of a state that takes milliseconds to write; with `waits`, while
// another thread waits for the save.
double SecondsInFlight(AsyncSaverOptions options, bool waits) {
  std::promise<absl::Time> committed;
  options.committed = [&](const std::string&) {
    committed.set_value(absl::Now());
    return absl::OkStatus();
  };
  double seconds = 0;
  EXPECT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(NewTestDirectory(), *group, options));
    FSDP_RETURN_IF_ERROR(saver->Save(StateOf(StateDictType::kSharded, AwkwardTensors(), 1, 0), 1).status());
    const absl::Time begin = absl::Now();
    if (waits) FSDP_RETURN_IF_ERROR(saver->Wait().status());
    seconds = absl::ToDoubleSeconds(committed.get_future().get() - begin);
    return absl::OkStatus();
  }));
  return seconds;
}

TEST(AsyncSaverTest, ASaveTakesItsShareOfACoreUntilAWaitBegins) {
  AsyncSaverOptions options;
  options.processor_share = 4e-3;
  const double waited_for = SecondsInFlight(options, /*waits=*/true);
  EXPECT_GT(SecondsInFlight(options, /*waits=*/false), waited_for + 0.2);
  EXPECT_LT(waited_for, 10);
}

TEST(AsyncSaverTest, ASaveThatHasToWaitDoublesTheShareAndSaysSo) {
  AsyncSaverOptions options;
  options.save.overwrite = true;
  options.processor_share = 0.3;
  // The first save is still in progress when the next one begins.
  options.committed = [](const std::string&) {
    absl::SleepFor(absl::Milliseconds(50));
    return absl::OkStatus();
  };
  ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(NewTestDirectory(), *group, options));
    const StateDict state = StateOf(StateDictType::kSharded, AwkwardTensors(), 1, 0);
    std::vector<std::string> notes;
    for (int i = 0; i < 4; ++i) {
      FSDP_ASSIGN_OR_RETURN(const AsyncSaveReport report, saver->Save(state, 1));
      notes.push_back(report.note);
    }
    EXPECT_THAT(notes, ElementsAre(IsEmpty(),
                                   HasSubstr("it is written with up to 60 % of a core, the one before was with 30 %"),
                                   HasSubstr("up to 100 % of a core, the one before was with 60 %"),
                                   HasSubstr("save less often, or to a faster disk")));
    return saver->Wait().status();
  }));
}

TEST(AsyncSaverTest, RefusesAShareThatIsNone) {
  ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    EXPECT_THAT(AsyncSaver::Create(NewTestDirectory(), *group, {.processor_share = 1.5}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("processor_share is 1.5, expected 0")));
    return absl::OkStatus();
  }));
}

TEST(AsyncSaverTest, TheStateMayChangeOnceSaveReturns) {
  const std::string root = NewTestDirectory();
  for (const StateDictType type : {StateDictType::kSharded, StateDictType::kLocal}) {
    const int64_t first = type == StateDictType::kLocal ? 10 : 1;
    ASSERT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root, *group));
      for (int64_t step = first; step < first + 3; ++step) {
        StateDict state = StateOf(type, AwkwardTensors(), 2, group->rank());
        FSDP_ASSIGN_OR_RETURN(const AsyncSaveReport report, saver->Save(state, step));
        Overwrite(state);
        EXPECT_EQ(report.unstaged_bytes, 0);
        EXPECT_GT(report.staged_bytes, 4 << 20);
      }
      FSDP_ASSIGN_OR_RETURN(const std::string last, saver->Wait());
      EXPECT_THAT(last, HasSubstr("step-000000"));
      return absl::OkStatus();
    }));
  }
  for (const char* step : {"/step-00000001", "/step-00000002", "/step-00000003", "/step-00000010", "/step-00000012"}) {
    ExpectSaved(root + step);
  }
}

TEST(AsyncSaverTest, TheDestructorWaitsForTheSaveInProgress) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root, *group));
    return saver->Save(ShardedState(AwkwardTensors(), 2, group->rank()), 1).status();
  }));
  ExpectSaved(root + "/step-00000001");
}

TEST(AsyncSaverTest, AnArenaThatIsTooSmallBlocksLongerAndSaysSo) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root, *group, {.staging_bytes = 1 << 20}));
    StateDict state = ShardedState(AwkwardTensors(), 2, group->rank());
    FSDP_ASSIGN_OR_RETURN(const AsyncSaveReport report, saver->Save(state, 1));
    Overwrite(state);
    EXPECT_GT(report.unstaged_bytes, 4 << 20);
    EXPECT_THAT(report.note,
                HasSubstr("did not fit into the staging arena of 1 MiB, so the save of step 1 was waited"));
    return absl::OkStatus();
  }));
  ExpectSaved(root + "/step-00000001");
}

TEST(AsyncSaverTest, AFailedSaveIsTheNextCallsErrorOnEveryRank) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root, *group));
    const StateDict state = ShardedState(AwkwardTensors(), 2, group->rank());
    FSDP_RETURN_IF_ERROR(saver->Save(state, 1).status());
    FSDP_RETURN_IF_ERROR(saver->Save(state, 1).status());  // exists: fails in the background
    EXPECT_THAT(
        saver->Save(state, 2).status(),
        StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("the background save of step 1 failed: rank 0 of 2: ")));
    EXPECT_OK(saver->Save(state, 3));  // and the one after that succeeds
    return saver->Wait().status();
  }));
  EXPECT_THAT(ListNames(root), testing::ElementsAre("step-00000001", "step-00000003"));
}

TEST(AsyncSaverTest, CommittedIsCalledOnRankZeroAndItsErrorReachesAll) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    std::vector<std::string> committed;
    AsyncSaverOptions options;
    options.committed = [&](const std::string& path) {
      committed.push_back(path);
      return committed.size() < 2 ? absl::OkStatus() : absl::InternalError("retention failed");
    };
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root, *group, options));
    const StateDict state = ShardedState(AwkwardTensors(), 2, group->rank());
    FSDP_RETURN_IF_ERROR(saver->Save(state, 1).status());
    FSDP_RETURN_IF_ERROR(saver->Save(state, 2).status());
    EXPECT_THAT(saver->Wait().status(), StatusIs(absl::StatusCode::kInternal, HasSubstr("retention failed")));
    EXPECT_EQ(committed.size(), group->rank() == 0 ? 2u : 0u);
    return absl::OkStatus();
  }));
}

TEST(AsyncSaverTest, TrainingGoesOnWhileASaveIsWritten) {
  const std::string root = NewTestDirectory();
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    AsyncSaverOptions options;
    options.committed = [&](const std::string&) {
      released.wait();  // the save is in progress until the caller has continued
      return absl::OkStatus();
    };
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root, *group, options));
    FSDP_RETURN_IF_ERROR(saver->Save(ShardedState(AwkwardTensors(), 1, 0), 1).status());
    release.set_value();
    return saver->Wait().status();
  }));
}

}  // namespace
}  // namespace fsdp
