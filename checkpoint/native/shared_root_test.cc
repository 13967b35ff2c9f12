// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/shared_root.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(SharedRootTest, OneDirectoryOfAllRanksIsFineAndIsLeftEmpty) {
  const std::string root = NewTestDirectory();
  EXPECT_OK(RunRanks(
      3, [&](const std::shared_ptr<ProcessGroup>& group) { return CheckSharedRoot(PosixFileSystem(), root, *group); }));
  EXPECT_THAT(ListNames(root), ElementsAre());
}

TEST(SharedRootTest, RanksWithADirectoryOfTheirOwnAreNamedOnEveryRank) {
  const std::string shared = NewTestDirectory();
  const std::string other = NewTestDirectory();
  std::vector<absl::Status> results(4);
  EXPECT_OK(RunRanks(4, [&](const std::shared_ptr<ProcessGroup>& group) {
    const bool is_blind = group->rank() == 1 || group->rank() == 3;
    results[group->rank()] = CheckSharedRoot(PosixFileSystem(), is_blind ? other : shared, *group);
    return absl::OkStatus();
  }));
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("rank 1 ("), HasSubstr("rank 3 ("), HasSubstr("of 4 ranks do not see"),
                                       Not(HasSubstr("rank 2 (")), HasSubstr("mount the same file system"))));
  }
  EXPECT_THAT(ListNames(shared), ElementsAre());
  EXPECT_THAT(ListNames(other), ElementsAre());
}

TEST(SharedRootTest, ADirectoryThatRank0CannotWriteToIsAnErrorOnEveryRank) {
  const std::string root = NewTestDirectory() + "/absent";
  std::vector<absl::Status> results(2);
  EXPECT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    results[group->rank()] = CheckSharedRoot(PosixFileSystem(), root, *group);
    return absl::OkStatus();
  }));
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kNotFound, HasSubstr("/absent/.shared-")));
  }
}

}  // namespace
}  // namespace fsdp
