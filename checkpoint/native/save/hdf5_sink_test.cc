// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/save/hdf5_sink.h"

#include <string>
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
using testing::IsEmpty;

TEST(Hdf5SinkTest, CheckpointsOfAllKindsVerifyAndLoad) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = AwkwardTensors();
  StateDict state = FullState(tensors);
  const struct {
    StateDictType type;
    int world_size;
    std::vector<FlatUnitLayout> units;
  } kCases[] = {{StateDictType::kFull, 1, {}},           {StateDictType::kSharded, 1, {}},
                {StateDictType::kSharded, 5, {}},        {StateDictType::kLocal, 1, FlatUnits()},
                {StateDictType::kLocal, 5, FlatUnits()}, {StateDictType::kLocal, 3, {}}};
  for (const auto& kind : kCases) {
    CheckpointDirectoryOptions options;
    options.type = kind.type;
    options.world_size = kind.world_size;
    options.step = 7;
    state.units = kind.units;
    const std::string path = absl::StrCat(root, "/converted-", &kind - kCases);
    ASSERT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), options));
    ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
    EXPECT_THAT(report.problems, IsEmpty());
    StateDict wanted = WantedState(tensors, 1, 0);
    EXPECT_OK(LoadCheckpoint(path, wanted));
    EXPECT_OK(CheckState(tensors, wanted));
    EXPECT_THAT(CheckpointStep(path), IsOkAndHolds(7));
  }
}

TEST(Hdf5SinkTest, OneProcessGivesTheFilesThatRanksWouldGive) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = AwkwardTensors();
  ASSERT_OK(RunRanks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(ShardedState(tensors, 3, group->rank()), root, 7, *group).status();
  }));
  const StateDict state = FullState(tensors);
  ASSERT_OK(WriteCheckpointDirectory(root + "/sink", state, ReadFromMemory(state),
                                     {.type = StateDictType::kSharded, .world_size = 3, .step = 7}));
  EXPECT_EQ(ReadFile(root + "/sink/checkpoint.h5"), ReadFile(root + "/step-00000007/checkpoint.h5"));
}

TEST(Hdf5SinkTest, OneProcessGivesTheFlatShardsThatRanksWouldGive) {
  const std::string root = NewTestDirectory();
  const std::vector<TestTensor> tensors = AwkwardTensors();
  ASSERT_OK(RunRanks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(LocalState(tensors, 3, group->rank()), root, 7, *group).status();
  }));
  StateDict state = FullState(tensors);
  state.units = FlatUnits();
  ASSERT_OK(WriteCheckpointDirectory(root + "/sink", state, ReadFromMemory(state),
                                     {.type = StateDictType::kLocal, .world_size = 3, .step = 7}));
  EXPECT_EQ(ReadFile(root + "/sink/checkpoint.h5"), ReadFile(root + "/step-00000007/checkpoint.h5"));
}

}  // namespace
}  // namespace fsdp
