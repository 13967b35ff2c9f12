// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/set_aside.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/retention.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/checkpoint/storage/fault_series.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kStep[] = "step-00000060";

class SetAsideTest : public testing::Test {
 protected:
  // A step that does not verify.
  void Make(const std::string& bytes) {
    fs::create_directories(root_ + "/" + kStep);
    WriteAll(root_ + "/" + kStep + "/manifest.json", bytes);
  }

  std::string BytesOf(const std::string& name) const { return ReadFile(root_ + "/" + name + "/manifest.json"); }

  const std::string root_ = NewTestDirectory() + "/root";
};

TEST_F(SetAsideTest, AStepIsRenamedWithAllThatIsInIt) {
  Make("not json");
  ASSERT_OK_AND_ASSIGN(const SetAsideStep aside, SetAsideCheckpoint(PosixFileSystem(), root_, kStep));
  EXPECT_EQ(aside.name, "step-00000060.damaged");
  EXPECT_EQ(aside.nbytes, 8);
  EXPECT_THAT(ListNames(root_), ElementsAre("step-00000060.damaged"));
  EXPECT_EQ(BytesOf(aside.name), "not json");
}

TEST_F(SetAsideTest, WhatIsNoCheckpointOfThisProjectKeepsItsName) {
  fs::create_directories(root_ + "/step-00000061");
  WriteAll(root_ + "/step-00000061/p.txt", "mine");
  WriteAll(root_ + "/" + kStep, "a file");
  EXPECT_THAT(SetAsideCheckpoint(PosixFileSystem(), root_, kStep),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it is not a directory")));
  EXPECT_THAT(SetAsideCheckpoint(PosixFileSystem(), root_, "step-00000061"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("step-00000061 is not a checkpoint of this project: it holds p.txt")));
  EXPECT_THAT(ListNames(root_), ElementsAre(kStep, "step-00000061"));
}

TEST_F(SetAsideTest, NothingThatWasSetAsideBeforeIsLost) {
  for (const char* bytes : {"a", "bb", "ccc"}) {
    Make(bytes);
    ASSERT_OK(SetAsideCheckpoint(PosixFileSystem(), root_, kStep));
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<SetAsideStep> steps, ListSetAside(root_));
  ASSERT_EQ(steps.size(), 3u);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].name, SetAsideName(kStep, static_cast<int>(i) + 1));
    EXPECT_EQ(steps[i].nbytes, i + 1);
    EXPECT_EQ(BytesOf(steps[i].name).size(), i + 1);
  }
}

TEST_F(SetAsideTest, NoSearchFindsItNoRetentionCountsItAndNothingSweepsIt) {
  Make("not json");
  ASSERT_OK(SetAsideCheckpoint(PosixFileSystem(), root_, kStep));
  EXPECT_THAT(ListCheckpoints(root_), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(LatestCheckpoint(root_), StatusIs(absl::StatusCode::kNotFound, HasSubstr("holds no checkpoint")));
  ASSERT_OK_AND_ASSIGN(const RetentionPlan plan, PlanRetention(root_, {.keep_last = 1}));
  EXPECT_THAT(plan.steps, IsEmpty());
  EXPECT_THAT(plan.leftovers, IsEmpty());
  ASSERT_OK(ApplyRetention(PosixFileSystem(), root_, plan));
  EXPECT_EQ(BytesOf("step-00000060.damaged"), "not json");
}

TEST_F(SetAsideTest, OnlyNamesThatItMakesAreListed) {
  for (const char* name : {"step-00000060.damaged", "step-00000060.damaged-2", "step-00000060.damaged-1",
                           "step-00000060.damaged-x", "step-60.damaged", "x.damaged", ".step-00000060.damaged"}) {
    fs::create_directories(root_ + "/" + name);
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<SetAsideStep> steps, ListSetAside(root_));
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].name, "step-00000060.damaged");
  EXPECT_EQ(steps[1].name, "step-00000060.damaged-2");
  EXPECT_THAT(ListSetAside(root_ + "/absent"), IsOkAndHolds(IsEmpty()));
}

TEST_F(SetAsideTest, AStepUnderRepairStays) {
  Make("not json");
  {
    ASSERT_OK_AND_ASSIGN(const DirectoryLock lock, DirectoryLock::Take(root_ + "/" + kStep));
    EXPECT_THAT(SetAsideCheckpoint(PosixFileSystem(), root_, kStep),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is being changed by process")));
    EXPECT_THAT(ListNames(root_), ElementsAre(kStep));
  }
  EXPECT_OK(SetAsideCheckpoint(PosixFileSystem(), root_, kStep));
  EXPECT_THAT(SetAsideCheckpoint(PosixFileSystem(), root_, kStep), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SetAsideTest, AFaultAtAnyOperationLeavesItUnderOneOfTheTwoNames) {
  const std::string graveyard = NewTestDirectory();
  const auto set_aside = [&](FileSystem& files) { return SetAsideCheckpoint(files, root_, kStep).status(); };
  Make("not json");
  FaultFileSystem counting(PosixFileSystem(), graveyard);
  ASSERT_OK(set_aside(counting));
  ASSERT_EQ(counting.operations(), 2);  // the rename, and the fsync of its directory
  for (const StorageFault& fault : FaultSeries(counting.operations())) {
    SCOPED_TRACE(fault.ToString());
    fs::remove_all(root_);
    Make("not json");
    FaultFileSystem files(PosixFileSystem(), graveyard);
    fault.Arm(files);
    const absl::Status status = set_aside(files);
    fault.Strike(files);
    const std::vector<std::string> names = ListNames(root_);
    ASSERT_EQ(names.size(), 1u);
    EXPECT_EQ(BytesOf(names[0]), "not json");
    if (status.ok()) {
      EXPECT_EQ(names[0], "step-00000060.damaged");
    }
    FaultFileSystem sound(PosixFileSystem(), graveyard);
    if (names[0] == kStep) {
      EXPECT_OK(set_aside(sound));
    }
    EXPECT_EQ(BytesOf("step-00000060.damaged"), "not json");
  }
}

}  // namespace
}  // namespace fsdp
