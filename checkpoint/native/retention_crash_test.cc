// SPDX-License-Identifier: Apache-2.0
//
// The deletion of old steps with a crash, or an error, at each of its storage operations in turn: every remaining
// step-* is complete, even if it shares files with deleted steps, the newest stays, and pruning again finishes the
// work.
#include <filesystem>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/retention.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/checkpoint/storage/fault_series.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

constexpr int kRanks = 2;

struct Scenario {
  std::string name;
  StateDictType type = StateDictType::kSharded;
  bool is_incremental = false;
  int parity = 0;
};

class RetentionCrashTest : public testing::TestWithParam<Scenario> {
 protected:
  // Steps 1 to 3, an interrupted save and an interrupted deletion; files that steps share have one inode.
  RetentionCrashTest() {
    const std::vector<TestTensor> tensors = {{StateKey::Model("frozen"), DType::kFloat32, {80000}},
                                             {StateKey::Model("w"), DType::kFloat32, {6, 2}}};
    std::string base;
    for (int64_t step = 1; step <= 3; ++step) {
      SaveOptions options;
      options.parity = GetParam().parity;
      if (GetParam().is_incremental) options.base = base;
      EXPECT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
        StateDict state = StateOf(GetParam().type, tensors, kRanks, group->rank());
        state.aliases.clear();
        return SaveCheckpoint(state, prepared_, step, *group, options).status();
      }));
      base = JoinPath(prepared_, StepName(step));
    }
    for (const char* name : {".step-00000009.tmp-0123456789abcdef", ".step-00000004.deleted-0123456789abcdef"}) {
      const std::string path = JoinPath(prepared_, name);
      fs::create_directory(path);
      fs::create_hard_link(JoinPath(base, kCheckpointFileName), JoinPath(path, "rank-00000-of-00002.h5"));
    }
  }

  // Makes a copy in which hard links stay hard links.
  void Prepare() {
    fs::remove_all(root_);
    fs::copy(prepared_, root_, fs::copy_options::recursive | fs::copy_options::create_hard_links);
  }

  absl::Status Prune(FileSystem& files) {
    const absl::StatusOr<RetentionPlan> plan = PlanRetention(root_, {.keep_last = 1});
    EXPECT_OK(plan);
    return plan.ok() ? ApplyRetention(files, root_, *plan) : plan.status();
  }

  const std::string prepared_ = NewTestDirectory();
  const std::string root_ = NewTestDirectory() + "/root";
  const std::string graveyard_ = NewTestDirectory();
};

TEST_P(RetentionCrashTest, AFaultAtAnyOperationLeavesWholeStepsAndTheNewest) {
  Prepare();
  FaultFileSystem counting(PosixFileSystem(), graveyard_);
  ASSERT_OK(Prune(counting));
  ASSERT_THAT(ListNames(root_), ElementsAre("step-00000003"));
  const int64_t operations = counting.operations();
  ASSERT_GT(operations, 10);
  std::printf("prune, %s: %lld operations\n", GetParam().name.c_str(), static_cast<long long>(operations));
  for (const StorageFault& fault : FaultSeries(operations)) {
    SCOPED_TRACE(fault.ToString());
    Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    fault.Arm(files);
    const absl::Status pruned = Prune(files);
    fault.Strike(files);
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> steps, ListCheckpoints(root_));
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(steps.back(), "step-00000003");
    for (const std::string& step : steps) EXPECT_OK(CheckStep(root_, step));
    // A step that was reported as deleted has no name that readers use.
    if (pruned.ok()) {
      EXPECT_EQ(steps.size(), 1u);
    }
    FaultFileSystem sound(PosixFileSystem(), graveyard_);
    EXPECT_OK(Prune(sound));
    EXPECT_THAT(ListNames(root_), ElementsAre("step-00000003"));
    EXPECT_OK(CheckStep(root_, "step-00000003"));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RetentionCrashTest,
                         testing::Values(Scenario{"Full", StateDictType::kFull}, Scenario{"Sharded"},
                                         Scenario{"Incremental", StateDictType::kSharded, true},
                                         Scenario{"IncrementalWithParity", StateDictType::kSharded, true, 1}),
                         [](const testing::TestParamInfo<Scenario>& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp
