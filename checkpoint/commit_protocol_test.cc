// SPDX-License-Identifier: Apache-2.0
//
// The commit protocol with a crash, or an error, at each of its storage operations in turn: what is found afterwards is
// the old checkpoint or the new one, whole, and the next save leaves nothing behind.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/file_names.h"
#include "checkpoint/save.h"
#include "checkpoint/storage/fault_file_system.h"
#include "checkpoint/test_state.h"
#include "checkpoint/verify.h"
#include "collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kWorldSize = 2;

// The old checkpoint and the new one hold a tensor of another length, and one that is the same.
std::vector<TestTensor> Tensors(int64_t rows) {
  return {{StateKey::Model("wte.weight"), DType::kFloat32, {rows, 3}},
          {StateKey::Model("frozen"), DType::kFloat32, {20000}},
          {StateKey::Model("empty"), DType::kFloat32, {0}}};
}
constexpr int64_t kOld = 5;
constexpr int64_t kNew = 8;

// How a checkpoint is saved.
enum class Form : uint8_t {
  kFull,        // by rank 0
  kSharedFull,  // by all ranks into one file
  kSharded,
  kLocal,
  kParity,       // kSharded, with a parity file
  kIncremental,  // kSharded, what step 1 holds linked
};

absl::Status Save(FileSystem& files, const std::string& root, int64_t rows, int64_t step, Form form) {
  const StateDictType type = form == Form::kFull    ? StateDictType::kFull
                             : form == Form::kLocal ? StateDictType::kLocal
                                                    : StateDictType::kSharded;
  return RunRanks(kWorldSize, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    const std::vector<FlatUnitLayout> units = {{"", {{"wte.weight", 0, rows * 3}}, rows * 3}};
    const StateDict state = type == StateDictType::kLocal ? LocalState(Tensors(rows), kWorldSize, group->rank(), units)
                                                          : StateOf(type, Tensors(rows), kWorldSize, group->rank());
    SaveOptions options = {.overwrite = true, .io_threads = 1};
    if (form == Form::kSharedFull) options.type = StateDictType::kFull;
    if (form == Form::kParity) options.parity = 1;
    if (form == Form::kIncremental && step > 1) options.base = JoinPath(root, StepName(1));
    return SaveCheckpointOn(files, state, root, step, *group, options).status();
  });
}

// The rows of the checkpoint at `path`, all of whose bytes are good; 0 when there is none.
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

struct Scenario {
  Form form = Form::kSharded;
  bool is_overwrite = false;  // save the same step again, or the next
};

class CommitProtocolTest : public testing::TestWithParam<Scenario> {
 protected:
  CommitProtocolTest() : new_step_(GetParam().is_overwrite ? 1 : 2), graveyard_(NewTestDirectory()) {}

  // A ROOT with the old checkpoint.
  void Prepare() {
    root_ = NewTestDirectory();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    ASSERT_OK(Save(files, root_, kOld, 1, GetParam().form));
  }

  absl::Status SaveNew(FaultFileSystem& files) { return Save(files, root_, kNew, new_step_, GetParam().form); }

  int64_t CountOperations() {
    Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    EXPECT_OK(SaveNew(files));
    return files.operations();
  }

  // Old or new, and never a mixture.
  bool NewIsThere() {
    const int64_t old_rows = RowsOf(JoinPath(root_, StepName(1)));
    const int64_t new_rows = RowsOf(JoinPath(root_, StepName(new_step_)));
    if (GetParam().is_overwrite) {
      EXPECT_TRUE(new_rows == kOld || new_rows == kNew) << new_rows;
    } else {
      EXPECT_EQ(old_rows, kOld);
      EXPECT_TRUE(new_rows == 0 || new_rows == kNew) << new_rows;
    }
    EXPECT_THAT(LatestCheckpoint(root_), IsOkAndHolds(JoinPath(root_, StepName(new_rows == 0 ? 1 : new_step_))));
    return new_rows == kNew;
  }

  // What the crash left does not keep the next save from succeeding, nor outlive it.
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
  std::string root_;
};

TEST_P(CommitProtocolTest, ACrashAtAnyOperationLeavesOldOrNew) {
  const int64_t operations = CountOperations();
  ASSERT_GT(operations, 10);
  RecordProperty("operations", absl::StrCat(operations));
  using Loss = FaultFileSystem::Loss;
  for (const Loss loss : {Loss::kNothing, Loss::kNamesAndData, Loss::kNames, Loss::kData, Loss::kSectors}) {
    // The last one: everything was done, and the save reported, before the power went.
    for (int64_t k = 1; k <= operations + 1; ++k) {
      SCOPED_TRACE(absl::StrCat("crash at operation ", k, " of ", operations, ", loss ", static_cast<int>(loss)));
      Prepare();
      FaultFileSystem files(PosixFileSystem(), graveyard_);
      files.CrashAt(k);
      const absl::Status saved = SaveNew(files);
      files.LosePower(loss);
      const bool is_new = NewIsThere();
      EXPECT_TRUE(is_new || !saved.ok()) << "a save was reported and then lost";
      SaveAgain();
    }
  }
}

TEST_P(CommitProtocolTest, AnErrorAtAnyOperationFailsTheSaveAndCleansUp) {
  const int64_t operations = CountOperations();
  for (int64_t k = 1; k <= operations; ++k) {
    SCOPED_TRACE(absl::StrCat("error at operation ", k, " of ", operations));
    Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    files.FailAt(k, absl::ResourceExhaustedError("no space left in the test"));
    const absl::Status saved = SaveNew(files);
    const bool is_new = NewIsThere();
    EXPECT_TRUE(is_new || !saved.ok());
    if (!saved.ok()) {
      if (!is_new) ExpectOnlySteps();
      EXPECT_THAT(saved, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no space left in the test")));
    }
    SaveAgain();
  }
}

std::string NameOf(const testing::TestParamInfo<Scenario>& info) {
  constexpr const char* kNames[] = {"Full", "SharedFull", "Sharded", "Local", "Parity", "Incremental"};
  return absl::StrCat(kNames[static_cast<int>(info.param.form)], info.param.is_overwrite ? "Overwrite" : "NewStep");
}

INSTANTIATE_TEST_SUITE_P(Scenarios, CommitProtocolTest,
                         testing::Values(Scenario{Form::kFull, false}, Scenario{Form::kFull, true},
                                         Scenario{Form::kSharedFull, false}, Scenario{Form::kSharedFull, true},
                                         Scenario{Form::kSharded, false}, Scenario{Form::kSharded, true},
                                         Scenario{Form::kLocal, false}, Scenario{Form::kLocal, true},
                                         Scenario{Form::kParity, false}, Scenario{Form::kIncremental, false}),
                         NameOf);

}  // namespace
}  // namespace fsdp
