// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/retention.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A ROOT with these steps.
std::string RootWith(const std::vector<int64_t>& steps) {
  const std::string root = NewTestDirectory();
  const StateDict state = FullState({{StateKey::Model("wte.weight"), DType::kFloat32, {4}}});
  for (const int64_t step : steps) {
    EXPECT_OK(WriteCheckpointDirectory(JoinPath(root, StepName(step)), state, ReadFromMemory(state), {.step = step}));
  }
  return root;
}

// Flips a bit: the step is complete, but does not verify.
void Damage(const std::string& root, int64_t step) {
  const std::string file = JoinPath(JoinPath(root, StepName(step)), "checkpoint.h5");
  std::string bytes = ReadFile(file);
  bytes.back() ^= 1;
  WriteAll(file, bytes);
}

void Prune(const std::string& root, const RetentionPolicy& policy) {
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, policy));
  ASSERT_OK(ApplyRetention(PosixFileSystem(), root, plan));
}

TEST(RetentionTest, KeepsTheNewest) {
  const std::string root = RootWith({1, 2, 3, 4});
  WriteAll(root + "/log.txt", "mine");
  EXPECT_OK(PruneCheckpoints(root, 2));
  EXPECT_THAT(ListNames(root), ElementsAre("log.txt", "step-00000003", "step-00000004"));
  EXPECT_OK(PruneCheckpoints(root, 2));
  EXPECT_THAT(ListNames(root), ElementsAre("log.txt", "step-00000003", "step-00000004"));
  EXPECT_THAT(PruneCheckpoints(root, 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keep_last is 0")));
  EXPECT_THAT(PlanRetention(root, {.keep_every = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keep_every is -1")));
  EXPECT_OK(PruneCheckpoints(root + "/absent", 1));
}

TEST(RetentionTest, AFileWithTheNameOfAStepIsLeftAlone) {
  const std::string root = RootWith({2, 3});
  WriteAll(root + "/step-00000001", "mine");
  WriteAll(root + "/step-00000004", "mine");
  EXPECT_OK(PruneCheckpoints(root, 1));
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000001", "step-00000003", "step-00000004"));
}

TEST(RetentionTest, AStepThatIsBeingRepairedStaysAndIsSaid) {
  const std::string root = RootWith({1, 2, 3});
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {.keep_last = 1}));
  {
    ASSERT_OK_AND_ASSIGN(const DirectoryLock lock, DirectoryLock::Take(root + "/step-00000001"));
    EXPECT_THAT(ApplyRetention(PosixFileSystem(), root, plan),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("step-00000001 is being changed by process")));
    EXPECT_THAT(ListNames(root), ElementsAre("step-00000001", "step-00000003"));
    EXPECT_OK(PruneCheckpoints(root, 1));  // the next save's
    EXPECT_THAT(ListNames(root), ElementsAre("step-00000001", "step-00000003"));
  }
  EXPECT_OK(ApplyRetention(PosixFileSystem(), root, plan));  // step 2 no longer exists
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000003"));
}

TEST(RetentionTest, OnePrunesARootAtATime) {
  const std::string root = RootWith({1, 2});
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {.keep_last = 1}));
  ASSERT_OK_AND_ASSIGN(const DirectoryLock lock, DirectoryLock::Take(root));
  EXPECT_THAT(ApplyRetention(PosixFileSystem(), root, plan),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(root + " is being changed by process")));
  EXPECT_OK(PruneCheckpoints(root, 1));
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000001", "step-00000002"));
}

TEST(RetentionTest, KeepsEveryNthStepForGood) {
  const std::string root = RootWith({100, 150, 200, 250, 300, 350});
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {.keep_last = 2, .keep_every = 200}));
  std::vector<std::string> kept;
  for (const RetentionPlan::Step& step : plan.steps) {
    if (step.keep) kept.push_back(absl::StrCat(step.name, " ", step.reason));
    EXPECT_GT(step.bytes, 0);
  }
  EXPECT_THAT(kept, ElementsAre("step-00000200 keep_every", "step-00000300 keep_last", "step-00000350 keep_last"));
  EXPECT_EQ(ListNames(root).size(), 6);  // a plan changes nothing
  EXPECT_OK(ApplyRetention(PosixFileSystem(), root, plan));
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000200", "step-00000300", "step-00000350"));
}

TEST(RetentionTest, ASaverKeepsTheLastCompleteOneWhateverItsAge) {
  const std::string root = RootWith({1, 2, 3, 4});
  fs::remove(root + "/step-00000004/checkpoint.h5");
  fs::resize_file(root + "/step-00000003/checkpoint.h5", 100);
  EXPECT_OK(PruneCheckpoints(root, 2));
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000002", "step-00000003", "step-00000004"));
}

TEST(RetentionTest, TheNewestThatVerifiesStaysWhateverItsAge) {
  const std::string root = RootWith({1, 2, 3, 4});
  Damage(root, 3);
  Damage(root, 4);
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {.keep_last = 2}));
  EXPECT_THAT(plan.steps[3].problem, HasSubstr("checkpoint.h5"));
  EXPECT_EQ(plan.steps[1].reason, "the newest that verifies");
  EXPECT_OK(ApplyRetention(PosixFileSystem(), root, plan));
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000002", "step-00000003", "step-00000004"));
}

TEST(RetentionTest, NothingIsDeletedWhereNothingVerifies) {
  const std::string root = RootWith({1, 2, 3});
  for (const int64_t step : {1, 2, 3}) Damage(root, step);
  Prune(root, {.keep_last = 1});
  EXPECT_EQ(ListNames(root).size(), 3);
}

// A foreign step-* would otherwise count as the newest, and the last checkpoint would be deleted.
TEST(RetentionTest, WhatIsNotProvenIsLeftNamedAndCountsAsNoStep) {
  const std::string root = RootWith({1, 2});
  fs::create_directory(root + "/step-00000003");
  WriteAll(root + "/step-00000003/p.txt", "mine");
  fs::create_directory_symlink("step-00000001", root + "/step-00000004");
  std::vector<std::string> left;
  EXPECT_OK(PruneCheckpoints(root, 1, 0, &left));
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000002", "step-00000003", "step-00000004"));
  EXPECT_THAT(left, ElementsAre(HasSubstr("step-00000003 is left in place: it holds p.txt"),
                                HasSubstr("step-00000004 is left in place: it is a symbolic link")));
  EXPECT_EQ(ReadFile(root + "/step-00000003/p.txt"), "mine");
}

TEST(RetentionTest, AStepThatHoldsAFileOfItsOwnersStaysAndIsNamed) {
  const std::string root = RootWith({1, 2, 3});
  WriteAll(root + "/step-00000001/thesis.txt", "mine");
  std::vector<std::string> left;
  EXPECT_OK(PruneCheckpoints(root, 1, 0, &left));
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000001", "step-00000003"));
  EXPECT_EQ(ReadFile(root + "/step-00000001/thesis.txt"), "mine");
  EXPECT_THAT(left, ElementsAre(HasSubstr("step-00000001 is left in place: it holds thesis.txt, which no save wrote")));
  // A file that came after the plan was made is not deleted either.
  fs::remove(root + "/step-00000001/thesis.txt");
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {.keep_last = 1}));
  WriteAll(root + "/step-00000001/late.txt", "mine");
  EXPECT_THAT(ApplyRetention(PosixFileSystem(), root, plan),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not deleted: it holds late.txt")));
  fs::remove(root + "/step-00000001/late.txt");
  EXPECT_OK(PruneCheckpoints(root, 1));
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000003"));
}

TEST(RetentionTest, ADamagedStepOfOursIsDeletedOnceItIsOld) {
  const std::string root = RootWith({1, 2, 3});
  Damage(root, 1);
  const std::string manifest = root + "/step-00000002/manifest.json";
  WriteAll(manifest, ReadFile(manifest).substr(0, 300));
  EXPECT_OK(PruneCheckpoints(root, 1));
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000003"));
}

TEST(RetentionTest, APlanThatWasMadeBeforeAStepWasReplacedDeletesNothingOfOthers) {
  const std::string root = RootWith({1, 2});
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {.keep_last = 1}));
  fs::remove_all(root + "/step-00000001");
  fs::create_directory(root + "/step-00000001");
  WriteAll(root + "/step-00000001/p.txt", "mine");
  EXPECT_THAT(
      ApplyRetention(PosixFileSystem(), root, plan),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("step-00000001 is not deleted: it holds p.txt")));
  EXPECT_EQ(ReadFile(root + "/step-00000001/p.txt"), "mine");
}

// Another host's clock, or one that was set back, gives files dates of any order.
TEST(RetentionTest, DatesOfFilesDecideNothing) {
  const std::string root = RootWith({1, 2, 3});
  const auto set_date = [&](const std::string& name, std::chrono::hours from_now) {
    const auto date = fs::file_time_type::clock::now() + from_now;
    for (const auto& entry : fs::directory_iterator(JoinPath(root, name))) fs::last_write_time(entry, date);
    fs::last_write_time(JoinPath(root, name), date);
  };
  const std::string running = ".step-00000004.tmp-0123456789abcdef";
  const std::string crashed = ".step-00000005.tmp-0123456789abcdef";
  for (const std::string& name : {running, crashed}) fs::create_directory(JoinPath(root, name));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> lock,
                       PosixFileSystem().OpenLocked(JoinPath(root, running + "/manifest.json")));
  set_date(StepName(3), std::chrono::hours(-10000));
  set_date(StepName(1), std::chrono::hours(1));
  set_date(running, std::chrono::hours(-10000));
  set_date(crashed, std::chrono::hours(1));
  EXPECT_THAT(LatestCheckpoint(root), IsOkAndHolds(JoinPath(root, StepName(3))));
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {.keep_last = 1}));
  EXPECT_LT(plan.leftovers.at(1).age, absl::Minutes(-59));
  ASSERT_OK(ApplyRetention(PosixFileSystem(), root, plan));
  EXPECT_THAT(ListNames(root), ElementsAre(running, StepName(3)));
}

TEST(RetentionTest, BytesAreFreedWhenTheLastStepThatLinksAFileGoes) {
  const std::string root = RootWith({1, 2, 3});
  const std::string file = root + "/step-00000001/checkpoint.h5";
  fs::remove(root + "/step-00000002/checkpoint.h5");
  fs::create_hard_link(file, root + "/step-00000002/checkpoint.h5");
  const auto manifest = [&](const char* step) {
    return static_cast<int64_t>(fs::file_size(root + step + "/manifest.json"));
  };
  ASSERT_OK_AND_ASSIGN(const RetentionPlan one, PlanRetention(root, {.keep_last = 2}));
  EXPECT_EQ(one.freed_bytes, manifest("/step-00000001"));
  ASSERT_OK_AND_ASSIGN(const RetentionPlan two, PlanRetention(root, {.keep_last = 1}));
  EXPECT_EQ(two.freed_bytes,
            manifest("/step-00000001") + manifest("/step-00000002") + static_cast<int64_t>(fs::file_size(file)));
}

TEST(RetentionTest, LeftoversOfCrashesAreListedAndDeleted) {
  const std::string root = RootWith({1});
  for (const char* name : {".step-00000002.tmp-0123456789abcdef", ".step-00000003.deleted-0123456789abcdef",
                           ".mine.tmp-0123456789abcdef"}) {
    fs::create_directory(JoinPath(root, name));
    WriteAll(JoinPath(root, name) + "/rank-00000-of-00002.h5", "12345");
  }
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {}));
  ASSERT_EQ(plan.leftovers.size(), 2);
  EXPECT_EQ(plan.leftovers[0].name, ".step-00000002.tmp-0123456789abcdef");
  EXPECT_EQ(plan.leftovers[0].bytes, 5);
  EXPECT_FALSE(plan.leftovers[0].in_use);
  EXPECT_EQ(ListNames(JoinPath(root, ".step-00000002.tmp-0123456789abcdef")).size(),
            1);  // checking the lock did not create it
  EXPECT_OK(ApplyRetention(PosixFileSystem(), root, plan));
  EXPECT_THAT(ListNames(root), ElementsAre(".mine.tmp-0123456789abcdef", "step-00000001"));
}

TEST(RetentionTest, ASaveAtWorkIsLeftAlone) {
  const std::string root = RootWith({1});
  const std::string path = root + "/.step-00000002.tmp-0123456789abcdef";
  fs::create_directory(path);
  ASSERT_OK_AND_ASSIGN(const auto before, PlanRetention(root, {}));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> lock, PosixFileSystem().OpenLocked(path + "/manifest.json"));
  ASSERT_OK_AND_ASSIGN(const auto during, PlanRetention(root, {}));
  EXPECT_TRUE(during.leftovers[0].in_use);
  EXPECT_OK(ApplyRetention(PosixFileSystem(), root, during));
  EXPECT_OK(ApplyRetention(PosixFileSystem(), root, before));  // a plan that is older than the save
  EXPECT_TRUE(fs::exists(path));
}

TEST(RetentionTest, AFileThatAnotherStepLinksIsNotFreed) {
  const std::string root = RootWith({1, 2});
  fs::create_hard_link(root + "/step-00000001/checkpoint.h5", root + "/linked.h5");
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {}));
  EXPECT_LT(plan.steps[0].bytes, plan.steps[1].bytes);
}

// After a crash at any operation, every remaining step-* verifies, and a good one remains.
TEST(RetentionTest, ACrashAtAnyOperationLeavesWholeSteps) {
  const StateDict state = FullState({{StateKey::Model("wte.weight"), DType::kFloat32, {4}}});
  for (int64_t operation = 1;; ++operation) {
    SCOPED_TRACE(absl::StrCat("operation ", operation));
    const std::string root = RootWith({1, 2, 3});
    FaultFileSystem files(PosixFileSystem(), NewTestDirectory());
    ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root, {}));
    files.CrashAt(operation);
    const absl::Status applied = ApplyRetention(files, root, plan);
    files.LosePower(FaultFileSystem::Loss::kNames);
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> steps, ListCheckpoints(root));
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(steps.back(), "step-00000003");
    for (const std::string& step : steps) EXPECT_OK(CheckStep(root, step));
    Prune(root, {});
    EXPECT_THAT(ListNames(root), ElementsAre("step-00000003"));
    if (applied.ok()) break;
  }
}

}  // namespace
}  // namespace fsdp
