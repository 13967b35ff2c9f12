// SPDX-License-Identifier: Apache-2.0
//
// Saving at one world size and loading at another, FULL and SHARDED.
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

absl::Status SaveSharded(const std::vector<TestTensor>& tensors, const std::string& root, int64_t step, int world_size,
                         const SaveOptions& options = {}) {
  return RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    const StateDict state = ShardedState(tensors, world_size, group->rank());
    return SaveCheckpoint(state, root, step, *group, options).status();
  });
}

absl::Status SaveFull(const std::vector<TestTensor>& tensors, const std::string& root, int64_t step, int world_size) {
  return RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    StateDict state;
    if (group->rank() == 0) state = FullState(tensors);
    return SaveCheckpoint(state, root, step, *group).status();
  });
}

class SaveLoadTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(SaveLoadTest, ShardedLoadsAtAnyWorldSize) {
  const auto [saved, loaded] = GetParam();
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = AwkwardTensors();
  ASSERT_OK(SaveSharded(tensors, root, 100, saved));
  ASSERT_OK_AND_ASSIGN(const std::string newest, LatestCheckpoint(root));
  EXPECT_EQ(newest, root + "/step-00000100");
  for (int rank = 0; rank < loaded; ++rank) {
    StateDict wanted = WantedState(tensors, loaded, rank);
    EXPECT_OK(LoadCheckpoint(newest, wanted));
    EXPECT_OK(CheckState(tensors, wanted));
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, SaveLoadTest,
                         testing::Combine(testing::Values(1, 2, 3, 4, 7), testing::Values(1, 2, 3, 8)));

TEST(SaveLoadTest, FullLoadsAtAnyWorldSize) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = AwkwardTensors();
  ASSERT_OK(SaveFull(tensors, root, 5, 3));
  ASSERT_OK_AND_ASSIGN(const std::string newest, LatestCheckpoint(root));
  for (const int loaded : {1, 2, 5}) {
    for (int rank = 0; rank < loaded; ++rank) {
      StateDict wanted = WantedState(tensors, loaded, rank);
      EXPECT_OK(LoadCheckpoint(newest, wanted));
      EXPECT_OK(CheckState(tensors, wanted));
    }
  }
}

TEST(SaveLoadTest, VerifyFindsNothingWrong) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(SaveSharded(AwkwardTensors(), root, 1, 3));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(root + "/step-00000001"));
  EXPECT_THAT(report.problems, testing::IsEmpty());
  EXPECT_EQ(report.files, 5);
}

}  // namespace
}  // namespace fsdp
