// SPDX-License-Identifier: Apache-2.0
//
// LOCAL state dicts: this rank's part of the flat parameters, as in memory.
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/counting_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

class LocalStateTest : public testing::TestWithParam<int> {};

TEST_P(LocalStateTest, CostsNoCommunicationAtAll) {
  ASSERT_OK(RunRanks(GetParam(), [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const auto counting = std::make_shared<CountingProcessGroup>(group);
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(counting, BlockOptions()));
    FSDP_RETURN_IF_ERROR(made.Train(0));
    counting->Reset();
    StateDictTypeGuard guard(*made.model, LocalStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.AllState());
    EXPECT_EQ(counting->collectives() + counting->control_calls(), 0);
    EXPECT_EQ(state.type, StateDictType::kLocal);
    FSDP_RETURN_IF_ERROR(made.model->LoadStateDict(state));
    EXPECT_EQ(counting->collectives() + counting->control_calls(), 0);
    return absl::OkStatus();
  }));
}

TEST_P(LocalStateTest, AliasesTheLiveShardsOfModelAndOptimizer) {
  ASSERT_OK(RunRanks(GetParam(), [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(made.Train(0));
    StateDictTypeGuard guard(*made.model, LocalStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.AllState());
    for (size_t i = 0; i < made.optimizer->parameters().size(); ++i) {
      const ShardedParameter& parameter = *made.optimizer->parameters()[i];
      const ShardedTensor* weight = state.FindTensor(StateKey::Model(parameter.fqn));
      const ShardedTensor* moment = state.FindTensor(StateKey::OptimState(parameter.fqn, "exp_avg"));
      if (weight == nullptr || moment == nullptr) return absl::NotFoundError(parameter.fqn);
      EXPECT_EQ(weight->shards.empty(), parameter.interval.empty());
      if (parameter.interval.empty()) continue;
      EXPECT_EQ(weight->shards[0].interval, parameter.interval);
      EXPECT_EQ(weight->shards[0].data.data(), parameter.data.data());
      FSDP_ASSIGN_OR_RETURN(const Tensor live, made.optimizer->State(i, "exp_avg"));
      EXPECT_EQ(moment->shards[0].data.data(), live.data());
    }
    return absl::OkStatus();
  }));
}

// Offsets in the recorded layout give the place of a slice in the flat shard.
TEST_P(LocalStateTest, RecordsTheLayoutThatItsIntervalsFollow) {
  ASSERT_OK(RunRanks(GetParam(), [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    StateDictTypeGuard guard(*made.model, LocalStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    EXPECT_EQ(state.units.size(), made.model->UnitNames().size());
    for (const FlatUnitLayout& unit : state.units) {
      const int64_t chunk = (unit.unsharded_numel + group->size() - 1) / group->size();
      const Interval shard{group->rank() * chunk, (group->rank() + 1) * chunk};
      for (const FlatUnitLayout::Entry& entry : unit.parameters) {
        const Interval common = Intersect({entry.offset, entry.offset + entry.numel}, shard);
        const ShardedTensor* tensor = state.FindTensor(StateKey::Model(entry.fqn));
        if (tensor == nullptr) return absl::NotFoundError(entry.fqn);
        EXPECT_EQ(tensor->shards.empty(), common.empty()) << entry.fqn;
        if (common.empty()) continue;
        const Interval expected{common.begin - entry.offset, common.end - entry.offset};
        EXPECT_EQ(tensor->shards[0].interval, expected) << entry.fqn;
      }
    }
    return absl::OkStatus();
  }));
}

TEST_P(LocalStateTest, OffloadedItIsACopy) {
  ASSERT_OK(RunRanks(GetParam(), [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    StateDictTypeGuard guard(*made.model, LocalStateDictConfig{.offload_to_cpu = true});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    for (const ShardedParameter* parameter : made.model->parameters()) {
      if (parameter->interval.empty()) continue;
      const Tensor& copy = state.FindTensor(StateKey::Model(parameter->fqn))->shards.at(0).data;
      EXPECT_NE(copy.data(), parameter->data.data());
      EXPECT_EQ(std::memcmp(copy.data(), parameter->data.data(), copy.nbytes()), 0);
    }
    return absl::OkStatus();
  }));
}

TEST_P(LocalStateTest, LoadsIntoTheSameWrappingAndGoesOnWithEqualBits) {
  StateCollector uninterrupted, resumed;
  ASSERT_OK(RunRanks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel first, MakeTestModel(group, BlockOptions()));
    for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(first.Train(step));
    FsdpOptions other = BlockOptions();
    other.init_seed = 99;
    FSDP_ASSIGN_OR_RETURN(TestModel second, MakeTestModel(group, other));
    {
      StateDictTypeGuard from(*first.model, LocalStateDictConfig{});
      StateDictTypeGuard to(*second.model, LocalStateDictConfig{});
      FSDP_ASSIGN_OR_RETURN(const StateDict state, first.AllState());
      FSDP_RETURN_IF_ERROR(second.model->LoadStateDict(state));
      FSDP_RETURN_IF_ERROR(second.model->LoadOptimStateDict(state, *second.optimizer));
    }
    FSDP_RETURN_IF_ERROR(first.Train(2));
    FSDP_RETURN_IF_ERROR(second.Train(2));
    FSDP_ASSIGN_OR_RETURN(const StateDict a, first.AllState());
    uninterrupted.Add(a);
    FSDP_ASSIGN_OR_RETURN(const StateDict b, second.AllState());
    resumed.Add(b);
    return absl::OkStatus();
  }));
  ExpectSame(uninterrupted, resumed);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, LocalStateTest, testing::Values(1, 2, 3, 4));

TEST(LocalStateFormTest, ReplicasOfNoShardSayWhichCopyTheyAre) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    options.sharding_strategy = ShardingStrategy::kNoShard;
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    StateDictTypeGuard guard(*made.model, LocalStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    for (const auto& [key, value] : state.entries()) {
      const auto& tensor = std::get<ShardedTensor>(value);
      EXPECT_EQ(tensor.replica, group->rank());
      EXPECT_EQ(tensor.shards.at(0).interval, (Interval{0, tensor.shape.numel()}));
    }
    return absl::OkStatus();
  }));
}

TEST(LocalStateErrorTest, AStateOfAnotherWrappingIsRefusedByItsElements) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FsdpOptions whole = BlockOptions();
    whole.auto_wrap_policy = WrapPolicy();
    FSDP_ASSIGN_OR_RETURN(TestModel other, MakeTestModel(group, whole));
    StateDictTypeGuard from(*made.model, LocalStateDictConfig{});
    StateDictTypeGuard to(*other.model, LocalStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    return other.model->LoadStateDict(state);
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("that a local state dict has")));
}

}  // namespace
}  // namespace fsdp
