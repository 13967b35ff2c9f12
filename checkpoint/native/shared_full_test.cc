// SPDX-License-Identifier: Apache-2.0
//
// FULL written by all ranks: each writes its elements into one checkpoint.h5, and nothing is gathered.
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

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

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<absl::Status> SaveFull(const std::string& root, int world_size,
                                   const std::function<StateDict(int rank)>& state_of) {
  std::vector<absl::Status> statuses(world_size);
  EXPECT_OK(RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StateDict state = state_of(group->rank());
    statuses[group->rank()] = SaveCheckpoint(state, root, 1, *group, {.type = StateDictType::kFull}).status();
    return absl::OkStatus();
  }));
  return statuses;
}

TEST(SharedFullTest, IsTheFileThatRankZeroAloneWouldWrite) {
  const std::vector<TestTensor> tensors = AwkwardTensors();
  const std::string gathered = NewTestDirectory();
  for (const absl::Status& status : SaveFull(gathered, 1, [&](int) { return FullState(tensors); })) ASSERT_OK(status);
  for (const StateDictType type : {StateDictType::kSharded, StateDictType::kLocal}) {
    for (const int world_size : {1, 2, 5}) {
      const std::string root = NewTestDirectory();
      const auto statuses =
          SaveFull(root, world_size, [&](int rank) { return StateOf(type, tensors, world_size, rank); });
      for (const absl::Status& status : statuses) ASSERT_OK(status);
      const std::string path = root + "/step-00000001";
      EXPECT_THAT(ListNames(path), ElementsAre("checkpoint.h5", "manifest.json"));
      EXPECT_TRUE(ReadFile(path + "/checkpoint.h5") == ReadFile(gathered + "/step-00000001/checkpoint.h5"));
      ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
      EXPECT_THAT(report.problems, IsEmpty());
      StateDict wanted = WantedState(tensors, 1, 0);
      EXPECT_OK(LoadCheckpoint(path, wanted));
      EXPECT_OK(CheckState(tensors, wanted));
    }
  }
}

TEST(SharedFullTest, HolesAreNamedAndNothingIsLeft) {
  const std::string root = NewTestDirectory();
  const TestTensor weight = {StateKey::Model("w"), DType::kFloat32, {6, 2}};
  const auto statuses = SaveFull(root, 2, [&](int rank) {
    StateDict state = ShardedState({weight}, 2, rank);
    ShardedTensor tensor = *state.FindTensor(weight.key);
    if (rank == 1) tensor.shards = {{{8, 12}, MakeElements(weight, {8, 12})}};
    state.Set(weight.key, tensor);
    state.aliases.clear();
    return state;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"model/w\": elements [6, 8) are missing")));
  }
  EXPECT_THAT(ListNames(root), IsEmpty());
}

TEST(SharedFullTest, RanksThatKnowOtherTensorsAreNamed) {
  const auto statuses = SaveFull(NewTestDirectory(), 2, [](int rank) {
    StateDict state = ShardedState({{StateKey::Model(rank == 0 ? "a" : "b"), DType::kFloat32, {4}}}, 2, rank);
    state.aliases.clear();
    return state;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("rank 1 holds parts of other tensors than rank 0")));
  }
}

TEST(SharedFullTest, OtherChangesOfKindAndParityAreRefused) {
  EXPECT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StateDict state = ShardedState(AwkwardTensors(), 1, 0);
    EXPECT_THAT(SaveCheckpoint(state, NewTestDirectory(), 1, *group, {.type = StateDictType::kLocal}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be saved as a local checkpoint")));
    EXPECT_THAT(SaveCheckpoint(state, NewTestDirectory(), 1, *group, {.type = StateDictType::kFull, .parity = 1}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a full checkpoint, which has no rank files")));
    return absl::OkStatus();
  }));
}

// Before a name is made for each of them, or a byte is written.
TEST(SharedFullTest, MoreParityFilesThanTheCodeHasAreRefused) {
  EXPECT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StateDict state = ShardedState(AwkwardTensors(), 1, 0);
    for (const int parity : {255, std::numeric_limits<int>::max()}) {
      const std::string root = NewTestDirectory();
      EXPECT_THAT(SaveCheckpoint(state, root, 1, *group, {.parity = parity}),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected 0 to 254")));
      EXPECT_TRUE(std::filesystem::is_empty(root));
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
