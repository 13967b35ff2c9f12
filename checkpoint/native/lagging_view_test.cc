// SPDX-License-Identifier: Apache-2.0
//
// A network file system shows what another host has changed late: names are missing from listings and look-ups, or are
// listed although they are gone, and then answer ESTALE. Each action takes the old or the new step, whole, or its error
// names what this host does not see; nothing that it does not see is replaced.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/retention.h"
#include "fsdp/checkpoint/native/save.h"
#include "fsdp/checkpoint/native/set_aside.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/system_call_faults.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 2;

// Each step has a tensor of its own length.
std::vector<TestTensor> Tensors(int64_t step) {
  return {{StateKey::Model("wte.weight"), DType::kFloat32, {step, 300}},
          {StateKey::Model("bias"), DType::kFloat32, {12}}};
}

// Ranks that see the root as `hidden` says, by rank.
absl::Status Save(const std::string& root, int64_t step, const std::vector<std::string>& hidden,
                  const SaveOptions& options = {}) {
  return RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
    FaultFileSystem view(PosixFileSystem(), "no graveyard");
    view.Hide(hidden[group->rank()]);
    const StateDict state = StateOf(StateDictType::kSharded, Tensors(step), kRanks, group->rank());
    return SaveCheckpointOn(view, state, root, step, *group, options).status();
  });
}

absl::Status CheckHolds(const std::string& path, int64_t step) {
  StateDict wanted = WantedState(Tensors(step), 1, 0);
  FSDP_RETURN_IF_ERROR(LoadCheckpoint(path, wanted));
  return CheckState(Tensors(step), wanted);
}

class LaggingViewTest : public testing::Test {
 protected:
  LaggingViewTest() {
    for (const int64_t step : {1, 2, 3}) EXPECT_OK(Save(root_, step, {"", ""}));
  }
  ~LaggingViewTest() override { SystemCallFaults::Show(); }

  std::string Path(int64_t step) const { return JoinPath(root_, StepName(step)); }

  void ExpectSteps(const std::vector<int64_t>& steps) const {
    std::vector<std::string> names;
    for (const int64_t step : steps) {
      names.push_back(StepName(step));
      EXPECT_OK(CheckHolds(Path(step), step));
    }
    EXPECT_EQ(ListNames(root_), names);
  }

  const std::string root_ = NewTestDirectory();
};

TEST_F(LaggingViewTest, ARankThatDoesNotSeeTheNewDirectoryEndsTheSaveOfAllRanks) {
  EXPECT_THAT(Save(root_, 4, {"", ".tmp-"}),
              StatusIs(testing::_, AllOf(HasSubstr("rank 1 of 2"), HasSubstr("cannot see " + root_))));
  ExpectSteps({1, 2, 3});
  EXPECT_OK(Save(root_, 4, {"", ""}));
  ExpectSteps({1, 2, 3, 4});
}

TEST_F(LaggingViewTest, Rank0CommitsNoStepOfWhichItDoesNotSeeAFile) {
  EXPECT_THAT(Save(root_, 4, {"rank-00001-of", ""}),
              StatusIs(testing::_, AllOf(HasSubstr("rank 0 of 2"), HasSubstr("rank-00001-of-00002.h5"))));
  EXPECT_THAT(LatestCheckpoint(root_), IsOkAndHolds(Path(3)));
  // Rank 0 could not remove what it did not see.
  EXPECT_OK(Save(root_, 4, {"", ""}));
  ExpectSteps({1, 2, 3, 4});
}

TEST_F(LaggingViewTest, TheStepThatIsNotSeenYetIsNotTheNewestAndIsNotReplaced) {
  SystemCallFaults::Hide(StepName(3));
  std::vector<std::string> skipped;
  EXPECT_THAT(LatestCheckpoint(root_, &skipped), IsOkAndHolds(Path(2)));
  EXPECT_THAT(skipped, IsEmpty());
  // The run that continues from step 2 reaches step 3 again.
  EXPECT_THAT(Save(root_, 3, {"", ""}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(absl::StrCat(Path(3), " exists"))));
  EXPECT_THAT(Save(root_, 3, {"", ""}, {.overwrite = true}), StatusIs(absl::StatusCode::kAlreadyExists));
  SystemCallFaults::Show();
  ExpectSteps({1, 2, 3});
}

TEST_F(LaggingViewTest, AStepThatIsListedBeforeItsFilesIsSkippedWithTheReason) {
  SystemCallFaults::Hide("rank-00001-of-00002.h5");
  std::vector<std::string> skipped;
  EXPECT_THAT(LatestCheckpoint(root_, &skipped), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_EQ(skipped.size(), 3u);
  EXPECT_THAT(skipped[0], AllOf(HasSubstr("step-00000003 does not verify"), HasSubstr("rank-00001-of-00002.h5")));
  SystemCallFaults::Show();
  EXPECT_THAT(LatestCheckpoint(root_), IsOkAndHolds(Path(3)));
}

TEST_F(LaggingViewTest, AStepThatWasRemovedElsewhereIsSkippedWithTheReason) {
  SystemCallFaults::Forget(StepName(3));
  std::vector<std::string> skipped;
  EXPECT_THAT(LatestCheckpoint(root_, &skipped), IsOkAndHolds(Path(2)));
  EXPECT_THAT(skipped,
              ElementsAre(AllOf(HasSubstr("step-00000003 cannot be read here"), HasSubstr("Stale file handle"))));
  EXPECT_THAT(CheckHolds(Path(3), 3), StatusIs(testing::_, HasSubstr("Stale file handle")));
  EXPECT_THAT(SetAsideCheckpoint(PosixFileSystem(), root_, StepName(3)),
              StatusIs(testing::_, HasSubstr("Stale file handle")));
}

TEST_F(LaggingViewTest, AnEntryThatMayBeANewerStepAndCannotBeReadIsNamed) {
  EXPECT_OK(Save(root_, 4, {"", ""}, {.name = "best"}));
  SystemCallFaults::Forget("best");
  const auto names_it = AllOf(HasSubstr("best cannot be read here"), HasSubstr("Stale file handle"));
  std::vector<std::string> skipped;
  EXPECT_THAT(LatestCheckpoint(root_, &skipped), IsOkAndHolds(Path(3)));
  EXPECT_THAT(skipped, ElementsAre(names_it));
  EXPECT_OK(CheckHolds(root_, 3));
  EXPECT_THAT(ListSteps(root_), StatusIs(testing::_, HasSubstr("Stale file handle")));
  // Without another step, "there is no checkpoint" would be too much.
  const std::string alone = NewTestDirectory();
  SystemCallFaults::Show();
  EXPECT_OK(Save(alone, 4, {"", ""}, {.name = "best"}));
  SystemCallFaults::Forget("best");
  const absl::Status none = LatestCheckpoint(alone).status();
  EXPECT_THAT(std::string(none.message()), names_it);
  EXPECT_FALSE(absl::IsNotFound(none)) << none;
  EXPECT_THAT(CheckHolds(alone, 4), StatusIs(testing::_, HasSubstr("Stale file handle")));
  SystemCallFaults::Show();
  EXPECT_THAT(LatestCheckpoint(root_), IsOkAndHolds(root_ + "/best"));
}

TEST_F(LaggingViewTest, RetentionKeepsWhatItDoesNotSeeAndTheNewestThatItSees) {
  SystemCallFaults::Hide(StepName(3));
  EXPECT_OK(PruneCheckpoints(root_, 1));
  SystemCallFaults::Show();
  ExpectSteps({2, 3});
}

TEST_F(LaggingViewTest, RetentionKeepsAnOlderStepForOneThatCannotBeRead) {
  SystemCallFaults::Forget(StepName(3));
  std::vector<std::string> left;
  EXPECT_OK(PruneCheckpoints(root_, 1, 0, &left));
  EXPECT_THAT(left, ElementsAre(AllOf(HasSubstr(Path(3)), HasSubstr("Stale file handle"))));
  SystemCallFaults::Show();
  ExpectSteps({2, 3});
}

// rename(2) would replace it.
TEST_F(LaggingViewTest, AFileThatIsNotSeenYetIsNotReplaced) {
  WriteAll(root_ + "/mine", "mine");
  WriteAll(root_ + "/theirs", "theirs");
  SystemCallFaults::Hide("theirs");
  EXPECT_THAT(PosixFileSystem().Rename(root_ + "/mine", root_ + "/theirs"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("theirs exists")));
  EXPECT_OK(PosixFileSystem().Rename(root_ + "/mine", root_ + "/free"));
  EXPECT_EQ(ReadFile(root_ + "/theirs"), "theirs");
  EXPECT_EQ(ReadFile(root_ + "/free"), "mine");
  EXPECT_FALSE(fs::exists(root_ + "/mine"));
}

}  // namespace
}  // namespace fsdp
