// SPDX-License-Identifier: Apache-2.0
//
// Train on some ranks, save, and load on other numbers of ranks with other wrappings: the same values, in every bit, of
// the model and of the optimizer.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

using Bytes = std::map<std::string, std::string>;

// A new directory under the test's own.
std::string NewRoot() {
  std::string pattern = testing::TempDir() + "/reshard-XXXXXX";
  return mkdtemp(pattern.data());
}

// Whole tensors of model and optimizer, from rank 0.
absl::StatusOr<Bytes> WholeState(TestModel& trained) {
  FSDP_ASSIGN_OR_RETURN(StateDict state, trained.model->GetStateDict());
  FSDP_RETURN_IF_ERROR(trained.model->AddOptimStateDict(*trained.optimizer, state));
  Bytes bytes;
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const Tensor& data = tensor->shards.at(0).data;
    bytes[key.ToString()].assign(static_cast<const char*>(data.data()), data.nbytes());
  }
  return bytes;
}

StateDictSettings SettingsOf(StateDictType type) {
  if (type == StateDictType::kFull) {
    return {FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true},
            FullOptimStateDictConfig{.offload_to_cpu = true, .rank0_only = true}};
  }
  if (type == StateDictType::kLocal) return LocalStateDictConfig{};
  return ShardedStateDictConfig{.offload_to_cpu = true};
}

absl::Status TrainAndSave(int world_size, StateDictType type, const std::string& root, Bytes* saved) {
  return RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel trained, MakeTestModel(group, BlockOptions()));
    for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(trained.Train(step));
    FSDP_ASSIGN_OR_RETURN(const Bytes whole, WholeState(trained));
    if (group->rank() == 0) *saved = whole;
    StateDictTypeGuard guard(*trained.model, SettingsOf(type));
    FSDP_ASSIGN_OR_RETURN(StateDict state, trained.model->GetStateDict());
    FSDP_RETURN_IF_ERROR(trained.model->AddOptimStateDict(*trained.optimizer, state));
    return SaveCheckpoint(state, root, 2, *group).status();
  });
}

absl::Status LoadWhole(int world_size, const FsdpOptions& options, const std::string& root, Bytes* loaded) {
  return RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel fresh, MakeTestModel(group, options));
    FSDP_ASSIGN_OR_RETURN(const std::string newest, LatestCheckpoint(root));
    FSDP_RETURN_IF_ERROR(
        fresh.model->Restore(fresh.optimizer.get(), [&](StateDict& wanted) { return LoadCheckpoint(newest, wanted); }));
    FSDP_ASSIGN_OR_RETURN(const Bytes whole, WholeState(fresh));
    if (group->rank() == 0) *loaded = whole;
    return absl::OkStatus();
  });
}

class ReshardTest : public testing::TestWithParam<std::tuple<StateDictType, int>> {};

TEST_P(ReshardTest, LoadsOnAnyNumberOfRanksUnderAnyWrapping) {
  const auto [type, world_size] = GetParam();
  const std::string root = NewRoot();
  Bytes saved;
  ASSERT_OK(TrainAndSave(world_size, type, root, &saved));
  FsdpOptions one_unit{.use_orig_params = true, .init_seed = 3};
  FsdpOptions replicated = BlockOptions();
  replicated.sharding_strategy = ShardingStrategy::kNoShard;
  for (const int other : {1, 2, 3, 5}) {
    for (const FsdpOptions& options : {BlockOptions(), one_unit, replicated}) {
      Bytes loaded;
      ASSERT_OK(LoadWhole(other, options, root, &loaded));
      EXPECT_TRUE(loaded == saved) << world_size << " ranks to " << other;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReshardTest,
                         testing::Combine(testing::Values(StateDictType::kFull, StateDictType::kSharded),
                                          testing::Values(1, 3, 4)));

INSTANTIATE_TEST_SUITE_P(Local, ReshardTest, testing::Values(std::tuple(StateDictType::kLocal, 3)));

// rank0_only, without the model in rank 0's memory.
TEST(StreamedCheckpointTest, IsTheFileOfAGatheredStateInEveryByteAndLoadsAnywhere) {
  const std::string gathered = NewRoot(), streamed = NewRoot();
  Bytes saved, loaded;
  ASSERT_OK(TrainAndSave(3, StateDictType::kFull, gathered, &saved));
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel trained, MakeTestModel(group, BlockOptions()));
    for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(trained.Train(step));
    FSDP_ASSIGN_OR_RETURN(const StateDict contents, trained.model->DescribeFullState(trained.optimizer.get()));
    SaveOptions options;
    options.stream = [&](const FullStatePart& write) {
      return trained.model->StreamFullState(trained.optimizer.get(), write);
    };
    return SaveCheckpoint(contents, streamed, 2, *group, options).status();
  }));
  EXPECT_TRUE(ReadFile(streamed + "/step-00000002/checkpoint.h5") ==
              ReadFile(gathered + "/step-00000002/checkpoint.h5"));
  ASSERT_OK(LoadWhole(2, BlockOptions(), streamed, &loaded));
  EXPECT_TRUE(loaded == saved);
}

TEST(ReshardErrorTest, AModelOfAnotherShapeIsRefusedByNameOnEveryRank) {
  const std::string root = NewRoot();
  Bytes saved;
  ASSERT_OK(TrainAndSave(2, StateDictType::kSharded, root, &saved));
  const absl::Status status = RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    Gpt2Config config = OddGpt2Config();
    config.vocab_size = 31;
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(config));
    FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(module), group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(const std::string newest, LatestCheckpoint(root));
    return model->Restore(nullptr, [&](StateDict& wanted) { return LoadCheckpoint(newest, wanted); });
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               testing::AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("[29, 15]"),
                                              HasSubstr("[31, 15]"))));
}

}  // namespace
}  // namespace fsdp
