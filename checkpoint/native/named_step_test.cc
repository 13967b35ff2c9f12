// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints under names that a program chose (SaveOptions::name): saved, found by their step, pruned and repaired
// like the others; and a copy under another name is not a step.
#include "fsdp/checkpoint/native/format/named_step.h"

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/retention.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The path of a saved checkpoint of step `step`, called `name`; 2 ranks with parity.
std::string SaveAs(const std::string& root, const std::string& name, int64_t step, SaveOptions options = {}) {
  std::string path;
  options.name = name;
  options.parity = 1;
  EXPECT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StateDict state = ShardedState(AwkwardTensors(), 2, group->rank());
    FSDP_ASSIGN_OR_RETURN(const std::string saved, SaveCheckpoint(state, root, step, *group, options));
    if (group->rank() == 0) path = saved;
    return absl::OkStatus();
  }));
  return path;
}

TEST(NamedStepTest, ACheckpointIsSavedUnderTheNamesOfFrameworks) {
  const std::string root = NewTestDirectory();
  for (const char* name :
       {"step-100", "checkpoint-500", "pytorch_model_fsdp_0", "epoch=3-step=100.ckpt", "a b", "\"ü\\"}) {
    const std::string path = SaveAs(root, name, 7);
    EXPECT_EQ(path, JoinPath(root, name));
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
    EXPECT_THAT(report.problems, IsEmpty()) << name;
    ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(PosixFileSystem(), path));
    EXPECT_EQ(manifest.save.name, name);
    EXPECT_EQ(manifest.save.step, 7);
    ASSERT_OK_AND_ASSIGN(const auto step, ReadNamedStep(PosixFileSystem(), root, name));
    EXPECT_EQ(step, 7);
  }
}

TEST(NamedStepTest, ACheckpointWithTheNameOfItsStepHasTheBytesOfBefore) {
  const std::string root = NewTestDirectory();
  const std::string path = SaveAs(root, "step-00000007", 7);
  EXPECT_THAT(ReadFile(JoinPath(path, "manifest.json")), testing::Not(HasSubstr("\"name\": \"step-")));
}

TEST(NamedStepTest, TheNewestStepIsFoundByItsNumberAndNotByItsName) {
  const std::string root = NewTestDirectory();
  SaveAs(root, "z", 1);
  SaveAs(root, "", 2);
  SaveAs(root, "checkpoint-1000", 1000);
  SaveAs(root, "checkpoint-500", 500);
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(root));
  EXPECT_THAT(names, ElementsAre("z", "step-00000002", "checkpoint-500", "checkpoint-1000"));
  ASSERT_OK_AND_ASSIGN(const std::string newest, LatestCheckpoint(root));
  EXPECT_EQ(newest, JoinPath(root, "checkpoint-1000"));
  ASSERT_OK_AND_ASSIGN(const FormatDriver* const format, FindFormat(root));
  EXPECT_TRUE(format->traits().is_root);
}

TEST(NamedStepTest, ADamagedStepIsSkippedAndNamed) {
  const std::string root = NewTestDirectory();
  SaveAs(root, "good", 1);
  const std::string file = SaveAs(root, "bad", 2) + "/rank-00001-of-00002.h5";
  WriteAll(file, ReadFile(file).substr(0, 100));
  std::vector<std::string> skipped;
  ASSERT_OK_AND_ASSIGN(const std::string newest, LatestCheckpoint(root, &skipped));
  EXPECT_EQ(newest, JoinPath(root, "good"));
  EXPECT_THAT(skipped, ElementsAre(HasSubstr("bad does not verify")));
}

// A user's copy of a step must never be taken for one that a run may delete.
TEST(NamedStepTest, ACopyUnderAnotherNameIsNoStepAndIsNotPruned) {
  const std::string root = NewTestDirectory();
  for (const int step : {1, 2, 3}) SaveAs(root, absl::StrCat("checkpoint-", step), step);
  fs::copy(JoinPath(root, "checkpoint-1"), JoinPath(root, "best"), fs::copy_options::recursive);
  EXPECT_OK(PruneCheckpoints(root, /*keep_last=*/1));
  EXPECT_THAT(ListNames(root), ElementsAre("best", "checkpoint-3"));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(root));
  EXPECT_THAT(names, ElementsAre("checkpoint-3"));
}

TEST(NamedStepTest, KeepEveryCountsTheStepsOfManifests) {
  const std::string root = NewTestDirectory();
  for (const int step : {10, 15, 20, 25}) SaveAs(root, absl::StrCat("s", step), step);
  EXPECT_OK(PruneCheckpoints(root, /*keep_last=*/1, /*keep_every=*/10));
  EXPECT_THAT(ListNames(root), ElementsAre("s10", "s20", "s25"));
}

TEST(NamedStepTest, ARepairKeepsTheName) {
  const std::string root = NewTestDirectory();
  const std::string path = SaveAs(root, "checkpoint-500", 500);
  fs::remove(path + "/manifest.json");
  fs::remove(path + "/rank-00001-of-00002.h5");
  ASSERT_OK(RepairCheckpoint(path).status());
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(root));
  EXPECT_THAT(names, ElementsAre("checkpoint-500"));
}

TEST(NamedStepTest, ASaveRemovesOnlyLeftoversOfItsOwnNameAndOfSteps) {
  const std::string root = NewTestDirectory();
  const std::string path = SaveAs(root, "a", 1);
  for (const char* hidden :
       {".a.tmp-0123456789abcdef", ".b.tmp-0123456789abcdef", ".step-00000001.tmp-0123456789abcdef"}) {
    fs::copy(path, JoinPath(root, hidden), fs::copy_options::recursive);
  }
  SaveAs(root, "a", 2, {.overwrite = true});
  EXPECT_THAT(ListNames(root), ElementsAre(".b.tmp-0123456789abcdef", "a"));
}

TEST(NamedStepTest, NamesThatMeanSomethingElseAreRefusedBeforeAByteIsWritten) {
  const std::string root = NewTestDirectory();
  EXPECT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StateDict state = ShardedState(AwkwardTensors(), 1, 0);
    for (const std::string& name :
         {std::string("."), std::string(".."), std::string(".hidden"), std::string("a/b"), std::string("a\nb"),
          std::string("\xff"), std::string(201, 'x'), std::string("step-00000008"), std::string("manifest.json"),
          std::string("rank-00000-of-00002.h5"), std::string("step-00000007.damaged"), std::string("a\0b", 3)}) {
      EXPECT_THAT(SaveCheckpoint(state, root, 7, *group, {.name = name}),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be the name of a checkpoint")))
          << name;
    }
    return absl::OkStatus();
  }));
  EXPECT_TRUE(fs::is_empty(root));
}

TEST(NamedStepTest, RanksThatGiveOtherNamesAreRefused) {
  const std::string root = NewTestDirectory();
  EXPECT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StateDict state = ShardedState(AwkwardTensors(), 2, group->rank());
    EXPECT_THAT(SaveCheckpoint(state, root, 7, *group, {.name = absl::StrCat("rank", group->rank())}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("name")));
    return absl::OkStatus();
  }));
}

// Two saves of one step: the files that each wrote would have one name in a third that links them.
TEST(NamedStepTest, IncrementalSavesOfOneStepUnderSeveralNamesAreWhole) {
  const std::string root = NewTestDirectory();
  std::string base = SaveAs(root, "a", 1);
  for (const char* name : {"b", "c", "d"}) {
    base = SaveAs(root, name, 1, {.base = base});
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(base));
    EXPECT_THAT(report.problems, IsEmpty());
  }
}

}  // namespace
}  // namespace fsdp
