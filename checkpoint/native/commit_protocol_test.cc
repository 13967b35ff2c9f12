// SPDX-License-Identifier: Apache-2.0
//
// The commit protocol with a crash, or an error, at each of its storage operations in turn: afterwards a reader finds
// the old checkpoint or the new one, complete, and the next save leaves no leftovers.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/save.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/checkpoint/storage/fault_series.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

constexpr int kWorldSize = 2;

// The old checkpoint and the new one hold a tensor of different length, and an equal one.
std::vector<TestTensor> Tensors(int64_t rows) {
  return {{StateKey::Model("wte.weight"), DType::kFloat32, {rows, 3}},
          {StateKey::Model("frozen"), DType::kFloat32, {60000}},
          {StateKey::Model("empty"), DType::kFloat32, {0}}};
}
constexpr int64_t kOld = 5;
constexpr int64_t kNew = 8;

// The options of a save.
struct Form {
  std::string name;
  StateDictType type = StateDictType::kSharded;
  bool is_shared = false;  // FULL by all ranks into one file
  int parity = 0;
  bool is_incremental = false;  // unchanged data of step 1 is linked
};

// The old checkpoint is step 1; the new one is step 1 or step 2.
struct Scenario {
  Form form;
  bool is_overwrite = false;
};

absl::Status Save(FileSystem& files, const std::string& root, int64_t rows, int64_t step, const Form& form) {
  return RunRanks(kWorldSize, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    // Flat datasets are linked only if all units are equal, and the unit of wte.weight changes.
    std::vector<FlatUnitLayout> units = {{"frozen", {{"frozen", 0, 60000}}, 60000},
                                         {"", {{"wte.weight", 0, rows * 3}}, rows * 3}};
    if (form.is_incremental) units.pop_back();
    const StateDictType type = form.is_shared ? StateDictType::kSharded : form.type;
    const StateDict state = type == StateDictType::kLocal ? LocalState(Tensors(rows), kWorldSize, group->rank(), units)
                                                          : StateOf(type, Tensors(rows), kWorldSize, group->rank());
    SaveOptions options = {.overwrite = true, .parity = form.parity, .io_threads = 1};
    if (form.is_shared) options.type = StateDictType::kFull;
    if (form.is_incremental && PosixFileSystem().Exists(JoinPath(root, StepName(1)))) {
      options.base = JoinPath(root, StepName(1));
    }
    return SaveCheckpointOn(files, state, root, step, *group, options).status();
  });
}

// The rows of the checkpoint at `path`, all of whose bytes must be good; 0 if it does not exist.
int64_t RowsOf(const std::string& path) {
  if (!PosixFileSystem().Exists(path)) return 0;
  const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(path);
  EXPECT_OK(report);
  if (!report.ok()) return -1;
  EXPECT_THAT(report->problems, IsEmpty());
  const absl::StatusOr<StateDict> described = DescribeCheckpoint(path);
  EXPECT_OK(described);
  if (!described.ok()) return -1;
  const int64_t rows = described->FindTensor(StateKey::Model("wte.weight"))->shape.dim(0);
  StateDict wanted = WantedState(Tensors(rows), 1, 0);
  EXPECT_OK(LoadCheckpoint(path, wanted));
  EXPECT_OK(CheckState(Tensors(rows), wanted));
  return rows;
}

class CommitProtocolTest : public testing::TestWithParam<Scenario> {
 protected:
  CommitProtocolTest()
      : new_step_(GetParam().is_overwrite ? 1 : 2), graveyard_(NewTestDirectory()), prepared_(NewTestDirectory()) {
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    EXPECT_OK(Save(files, prepared_, kOld, 1, GetParam().form));
  }

  // A ROOT with the old checkpoint.
  void Prepare() {
    fs::remove_all(root_);
    fs::copy(prepared_, root_, fs::copy_options::recursive);
  }

  absl::Status SaveNew(FaultFileSystem& files) { return Save(files, root_, kNew, new_step_, GetParam().form); }

  int64_t CountOperations() {
    Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    EXPECT_OK(SaveNew(files));
    const std::vector<std::string> names = ListNames(JoinPath(root_, StepName(new_step_)));
    EXPECT_EQ(std::count(names.begin(), names.end(), "rank-00000-of-00002.step-00000001.h5"),
              GetParam().form.is_incremental ? 1 : 0);
    return files.operations();
  }

  // Checks that the checkpoint is the old or the new one, never a mixture.
  bool NewIsThere() {
    const int64_t old_rows = RowsOf(JoinPath(root_, StepName(1)));
    const int64_t new_rows = GetParam().is_overwrite ? old_rows : RowsOf(JoinPath(root_, StepName(2)));
    if (GetParam().is_overwrite) {
      EXPECT_TRUE(new_rows == kOld || new_rows == kNew) << new_rows;
    } else {
      EXPECT_EQ(old_rows, kOld);
      EXPECT_TRUE(new_rows == 0 || new_rows == kNew) << new_rows;
    }
    EXPECT_THAT(LatestCheckpoint(root_), IsOkAndHolds(JoinPath(root_, StepName(new_rows == 0 ? 1 : new_step_))));
    return new_rows == kNew;
  }

  // Leftovers of the fault must not make the next save fail, and are removed by it.
  void SaveAgain() {
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    ASSERT_OK(Save(files, root_, kNew, 3, GetParam().form));
    EXPECT_EQ(RowsOf(JoinPath(root_, StepName(3))), kNew);
    ExpectOnlySteps();
  }

  void ExpectOnlySteps() {
    for (const std::string& name : ListNames(root_)) EXPECT_TRUE(ParseStepName(name).has_value()) << name;
  }

  const int64_t new_step_;
  const std::string graveyard_;
  const std::string prepared_;
  const std::string root_ = NewTestDirectory() + "/root";
};

TEST_P(CommitProtocolTest, AFaultAtAnyOperationLeavesOldOrNew) {
  const int64_t operations = CountOperations();
  ASSERT_GT(operations, 10);
  RecordProperty("operations", absl::StrCat(operations));
  std::printf("%s: %lld operations\n", testing::UnitTest::GetInstance()->current_test_info()->name(),
              static_cast<long long>(operations));
  for (const StorageFault& fault : FaultSeries(operations)) {
    SCOPED_TRACE(fault.ToString());
    Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    fault.Arm(files);
    const absl::Status saved = SaveNew(files);
    fault.Strike(files);
    const bool is_new = NewIsThere();
    EXPECT_TRUE(is_new || !saved.ok()) << "a save was reported and then lost";
    if (fault.can_clean_up() && !saved.ok() && !is_new) ExpectOnlySteps();
    if (!fault.is_crash() && !saved.ok()) {
      EXPECT_THAT(std::string(saved.message()), testing::HasSubstr("test: "));
    }
    SaveAgain();
  }
}

std::vector<Scenario> Scenarios() {
  const std::vector<Form> forms = {
      {.name = "Full", .type = StateDictType::kFull},
      {.name = "SharedFull", .type = StateDictType::kFull, .is_shared = true},
      {.name = "Sharded"},
      {.name = "Local", .type = StateDictType::kLocal},
      {.name = "ShardedParity", .parity = 1},
      {.name = "LocalParity", .type = StateDictType::kLocal, .parity = 1},
      {.name = "ShardedIncremental", .is_incremental = true},
      {.name = "LocalIncremental", .type = StateDictType::kLocal, .is_incremental = true},
      {.name = "ShardedParityIncremental", .parity = 1, .is_incremental = true},
  };
  std::vector<Scenario> scenarios;
  for (const Form& form : forms) {
    for (const bool is_overwrite : {false, true}) scenarios.push_back({form, is_overwrite});
  }
  return scenarios;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, CommitProtocolTest, testing::ValuesIn(Scenarios()),
                         [](const testing::TestParamInfo<Scenario>& info) {
                           return info.param.form.name + (info.param.is_overwrite ? "Overwrite" : "NewStep");
                         });

}  // namespace
}  // namespace fsdp
