// SPDX-License-Identifier: Apache-2.0
//
// An optimizer's state dict from every form into this rank's slices: full, scattered, flattened; and the errors of one
// that cannot be converted.
#include "fsdp/fsdp/optim_forms.h"

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/counting_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

absl::StatusOr<TestModel> Trained(std::shared_ptr<ProcessGroup> group, const FsdpOptions& options = BlockOptions()) {
  FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(std::move(group), options));
  for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
  return made;
}

absl::StatusOr<StateDict> OptimState(TestModel& made, const StateDictSettings& settings) {
  StateDictTypeGuard guard(*made.model, settings);
  StateDict state;
  FSDP_RETURN_IF_ERROR(made.model->AddOptimStateDict(*made.optimizer, state));
  return state;
}

// Elements of every tensor of `slices` equal the optimizer's current ones.
void ExpectAreTheOptimizers(const StateDict& slices, Optimizer& optimizer) {
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const ShardedParameter& parameter = *optimizer.parameters()[i];
    for (const std::string& name : optimizer.state_names()) {
      const ShardedTensor* slice = slices.FindTensor(StateKey::OptimState(parameter.fqn, name));
      ASSERT_NE(slice, nullptr) << parameter.fqn;
      ASSERT_EQ(slice->shards.empty(), parameter.interval.empty());
      if (parameter.interval.empty()) continue;
      EXPECT_EQ(slice->shards[0].interval, parameter.interval);
      const Tensor live = *optimizer.State(i, name);
      EXPECT_NE(slice->shards[0].data.data(), live.data());
      EXPECT_EQ(std::memcmp(slice->shards[0].data.data(), live.data(), live.nbytes()), 0) << parameter.fqn;
    }
    const ShardedTensor* step = slices.FindTensor(StateKey::OptimState(parameter.fqn, "step"));
    ASSERT_NE(step, nullptr);
    EXPECT_EQ(*step->shards.at(0).data.data_as<float>(), 2.0f);
  }
}

class OptimFormsTest : public testing::TestWithParam<int> {};

TEST_P(OptimFormsTest, ShardsAFullStateWithoutCommunication) {
  ASSERT_OK(RunRanks(GetParam(), [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const auto counting = std::make_shared<CountingProcessGroup>(group);
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(counting));
    FSDP_ASSIGN_OR_RETURN(const StateDict full, OptimState(made, FullStateDictConfig{}));
    counting->Reset();
    FSDP_ASSIGN_OR_RETURN(const StateDict slices, ShardFullOptimStateDict(*made.model, full));
    EXPECT_EQ(counting->collectives() + counting->control_calls(), 0);
    EXPECT_EQ(slices.type, StateDictType::kLocal);
    EXPECT_EQ(*slices.FindText(StateKey::ParamGroups()), *full.FindText(StateKey::ParamGroups()));
    ExpectAreTheOptimizers(slices, *made.optimizer);
    return absl::OkStatus();
  }));
}

TEST_P(OptimFormsTest, ScattersAFullStateThatRank0AloneHas) {
  ASSERT_OK(RunRanks(GetParam(), [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    FSDP_ASSIGN_OR_RETURN(const StateDict full,
                          OptimState(made, {FullStateDictConfig{}, FullOptimStateDictConfig{.rank0_only = true}}));
    EXPECT_EQ(full.empty(), group->rank() != 0);
    FSDP_ASSIGN_OR_RETURN(const StateDict slices,
                          ScatterFullOptimStateDict(*made.model, group->rank() == 0 ? &full : nullptr));
    ExpectAreTheOptimizers(slices, *made.optimizer);
    return absl::OkStatus();
  }));
}

TEST_P(OptimFormsTest, FlattensAShardedState) {
  ASSERT_OK(RunRanks(GetParam(), [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    FSDP_ASSIGN_OR_RETURN(const StateDict sharded, OptimState(made, ShardedStateDictConfig{}));
    FSDP_ASSIGN_OR_RETURN(const StateDict slices, FlattenShardedOptimStateDict(*made.model, sharded));
    ExpectAreTheOptimizers(slices, *made.optimizer);
    return absl::OkStatus();
  }));
}

// OptimStateDictToLoad turns any form into the slices that the optimizer under the other wrapping needs.
TEST_P(OptimFormsTest, ToLoadGivesAnotherWrappingItsSlices) {
  for (const StateDictSettings& settings :
       {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{}),
        StateDictSettings(FullStateDictConfig{}, FullOptimStateDictConfig{.rank0_only = true})}) {
    StateCollector before, after;
    ASSERT_OK(RunRanks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
      FsdpOptions whole = BlockOptions();
      whole.auto_wrap_policy = WrapPolicy();
      whole.use_orig_params = true;
      FSDP_ASSIGN_OR_RETURN(TestModel other, MakeTestModel(group, whole));
      FSDP_ASSIGN_OR_RETURN(const StateDict state, OptimState(made, settings));
      StateDictTypeGuard guard(*other.model, settings);
      FSDP_ASSIGN_OR_RETURN(const StateDict slices, other.model->OptimStateDictToLoad(state, *other.optimizer));
      {
        StateDictTypeGuard local(*other.model, LocalStateDictConfig{});
        FSDP_RETURN_IF_ERROR(other.model->LoadOptimStateDict(slices, *other.optimizer));
      }
      FSDP_ASSIGN_OR_RETURN(const StateDict a, OptimState(made, FullStateDictConfig{}));
      before.Add(a);
      FSDP_ASSIGN_OR_RETURN(const StateDict b, OptimState(other, FullStateDictConfig{}));
      after.Add(b);
      return absl::OkStatus();
    }));
    ExpectSame(before, after);
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, OptimFormsTest, testing::Values(1, 2, 3, 4));

TEST(OptimFormsErrorTest, Rank0WithoutAStateToScatterIsEveryRanksError) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    return ScatterFullOptimStateDict(*made.model, nullptr).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 has no full optimizer state")));
}

TEST(OptimFormsErrorTest, AShapeThatIsNotTheParametersIsNamed) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    FSDP_ASSIGN_OR_RETURN(StateDict full, OptimState(made, FullStateDictConfig{}));
    const StateKey key = StateKey::OptimState("transformer.ln_f.bias", "exp_avg");
    ShardedTensor wrong = *full.FindTensor(key);
    wrong.shape = {5, 3};
    full.Set(key, wrong);
    return ShardFullOptimStateDict(*made.model, full).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("exp_avg\": shape [5, 3] in the state dict != [15] in the model")));
}

TEST(OptimFormsErrorTest, AChunkThatOneRankLacksIsNamedWithTheRank) {
  const absl::Status status = RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    FSDP_ASSIGN_OR_RETURN(const StateDict sharded, OptimState(made, ShardedStateDictConfig{}));
    StateDict damaged;
    for (const auto& [key, value] : sharded.entries()) {
      if (group->rank() == 2 && key.ToString() == "optim/state/transformer.wpe.weight/exp_avg_sq") continue;
      damaged.Set(key, value);
    }
    return FlattenShardedOptimStateDict(*made.model, damaged).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("\"transformer.wpe.weight\": rank 2 lacks exp_avg_sq, which rank 0 has")));
}

// A weight of a head outside FSDP, whole on every rank, in the same optimizer.
struct WithHead {
  explicit WithHead(TestModel trained) : made(std::move(trained)) {
    head.fqn = "head.weight";
    head.shape = {3, 2};
    head.interval = {0, 6};
    head.data = *Tensor::Empty(made.model->device(), DType::kFloat32, {6});
    head.grad = *Tensor::Empty(made.model->device(), DType::kFloat32, {6});
    head.device = &made.model->device();
    head.has_grad = true;
    for (int i = 0; i < 6; ++i) head.data.data_as<float>()[i] = head.grad.data_as<float>()[i] = static_cast<float>(i);
    std::vector<ShardedParameter*> all = made.model->parameters();
    all.push_back(&head);
    made.optimizer = std::make_unique<AdamW>(all, AdamWOptions{.lr = 1e-2});
  }

  TestModel made;
  ShardedParameter head;
};

TEST(OptimUnmanagedTest, ParametersThatNoUnitHasAreSavedWholeAndComeBack) {
  for (const StateDictSettings& settings :
       {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{}),
        StateDictSettings(LocalStateDictConfig{}),
        StateDictSettings(FullStateDictConfig{}, FullOptimStateDictConfig{.rank0_only = true})}) {
    ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel plain, MakeTestModel(group, BlockOptions()));
      WithHead with(std::move(plain));
      FSDP_RETURN_IF_ERROR(with.made.Train(0));
      FSDP_ASSIGN_OR_RETURN(const StateDict state, OptimState(with.made, settings));
      const ShardedTensor* saved = state.FindTensor(StateKey::OptimState("head.weight", "exp_avg"));
      if (!state.empty()) {
        if (saved == nullptr) return absl::NotFoundError("head.weight");
        EXPECT_EQ(saved->shards.at(0).interval, (Interval{0, 6}));
        EXPECT_EQ(saved->replica, group->rank());
      }
      FSDP_ASSIGN_OR_RETURN(TestModel again, MakeTestModel(group, BlockOptions()));
      WithHead loaded(std::move(again));
      StateDictTypeGuard guard(*loaded.made.model, settings);
      FSDP_RETURN_IF_ERROR(loaded.made.model->LoadOptimStateDict(state, *loaded.made.optimizer));
      const size_t index = loaded.made.optimizer->parameters().size() - 1;
      EXPECT_EQ(loaded.made.optimizer->step_count(index), 1);
      FSDP_ASSIGN_OR_RETURN(const Tensor a, with.made.optimizer->State(index, "exp_avg"));
      FSDP_ASSIGN_OR_RETURN(const Tensor b, loaded.made.optimizer->State(index, "exp_avg"));
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.nbytes()), 0);
      return absl::OkStatus();
    }));
  }
}

// The user's own entries go through every form unchanged; an optimizer cannot take them.
TEST(OptimUnmanagedTest, UnknownEntriesAreCopiedThroughAndRefusedByAnOptimizerThatIsStrict) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    FSDP_ASSIGN_OR_RETURN(const Tensor mine, Tensor::Empty(made.model->device(), DType::kInt64, {2}));
    mine.data_as<int64_t>()[0] = 41;
    mine.data_as<int64_t>()[1] = 42;
    StateDict state;
    state.Set(StateKey::OptimState("my.counter", "hits"), ShardedTensor::Whole(mine));
    FSDP_RETURN_IF_ERROR(made.model->AddOptimStateDict(*made.optimizer, state));
    FSDP_ASSIGN_OR_RETURN(const StateDict slices,
                          ScatterFullOptimStateDict(*made.model, group->rank() == 0 ? &state : nullptr));
    const ShardedTensor* through = slices.FindTensor(StateKey::OptimState("my.counter", "hits"));
    if (through == nullptr) return absl::NotFoundError("my.counter");
    EXPECT_EQ(through->shards.at(0).data.data_as<int64_t>()[1], 42);

    EXPECT_THAT(made.model->LoadOptimStateDict(state, *made.optimizer),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("optimizer state of [my.counter]")));
    EXPECT_THAT(made.model->LoadOptimStateDict(state, *made.optimizer, {.strict = false}),
                IsOkAndHolds(testing::ElementsAre("my.counter")));
    return absl::OkStatus();
  }));
}

TEST(OptimStateErrorTest, StateMissingOnARankIsNamedAndNeverZero) {
  const absl::Status status = RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    std::vector<ShardedParameter*> some = made.model->parameters();
    if (group->rank() == 1) some.pop_back();
    AdamW partial(some, {});
    for (ShardedParameter* parameter : some) parameter->has_grad = true;
    FSDP_RETURN_IF_ERROR(partial.Step(made.model->stream()));
    StateDict state;
    return made.model->AddOptimStateDict(partial, state);
  });
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is missing on rank 1, rank 0 has it")));
}

TEST(OptimStateErrorTest, StepsThatDifferBetweenRanksAreNamed) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    if (group->rank() == 1) made.optimizer->set_step_count(0, 9);
    StateDict state;
    return made.model->AddOptimStateDict(*made.optimizer, state);
  });
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has taken 9 steps on rank 1, 2 on rank 0")));
}

TEST(OptimStateErrorTest, StateThatWasNeverMadeIsNamed) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    for (size_t i = 0; i < made.optimizer->parameters().size(); ++i) made.optimizer->set_step_count(i, 3);
    StateDict state;
    return made.model->AddOptimStateDict(*made.optimizer, state);
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lacks exp_avg after 3 steps")));
}

TEST(OptimStateErrorTest, StateThatOneRankNeverMadeIsEveryRanksError) {
  absl::Status statuses[2];
  EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    AdamW empty(made.model->parameters(), {});
    for (size_t i = 0; i < empty.parameters().size(); ++i) empty.set_step_count(i, 2);
    StateDict state;
    statuses[group->rank()] =
        made.model->AddOptimStateDict(group->rank() == 1 ? static_cast<Optimizer&>(empty) : *made.optimizer, state);
    return absl::OkStatus();
  }));
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lacks exp_avg after 2 steps")));
  }
}

TEST(OptimStateErrorTest, StateKeyedByIdsMustBeRekeyed) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    FSDP_ASSIGN_OR_RETURN(const StateDict full, OptimState(made, FullStateDictConfig{}));
    FSDP_ASSIGN_OR_RETURN(const StateDict by_id,
                          RekeyOptimStateDict(full, OptimStateKeyType::kParamId, *made.optimizer));
    EXPECT_OK(RekeyOptimStateDict(by_id, OptimStateKeyType::kParamName, *made.optimizer));
    return made.model->LoadOptimStateDict(by_id, *made.optimizer);
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keyed by parameter ids")));
}

TEST(OptimStateTest, ParametersWithoutStateHaveNoneAndLoseAnOldOne) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel fresh, MakeTestModel(group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(const StateDict none, OptimState(fresh, FullStateDictConfig{}));
    EXPECT_EQ(none.entries().size(), 1u);  // param_groups
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    FSDP_RETURN_IF_ERROR(made.model->LoadOptimStateDict(none, *made.optimizer));
    EXPECT_EQ(made.optimizer->step_count(0), 0);
    FSDP_ASSIGN_OR_RETURN(const Tensor moment, made.optimizer->State(0, "exp_avg"));
    for (int64_t i = 0; i < moment.numel(); ++i) EXPECT_EQ(moment.data_as<float>()[i], 0.0f);
    return absl::OkStatus();
  }));
}

TEST(OptimStateTest, WithoutParamGroupsInTheStateHyperparametersStay) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Trained(group));
    FSDP_ASSIGN_OR_RETURN(StateDict with, OptimState(made, FullStateDictConfig{}));
    FSDP_RETURN_IF_ERROR(made.optimizer->SetHyperparameter("lr", 0.75));
    StateDict without;
    for (const auto& [key, value] : with.entries()) {
      if (key.section != StateKey::Section::kParamGroups) without.Set(key, value);
    }
    FSDP_ASSIGN_OR_RETURN(const StateDict slices, ShardFullOptimStateDict(*made.model, without));
    EXPECT_EQ(slices.FindText(StateKey::ParamGroups()), nullptr);
    FSDP_RETURN_IF_ERROR(made.model->LoadOptimStateDict(without, *made.optimizer));
    EXPECT_EQ(made.optimizer->ParamGroups()[0].values[0].second, 0.75);
    FSDP_RETURN_IF_ERROR(made.model->LoadOptimStateDict(with, *made.optimizer));
    EXPECT_EQ(made.optimizer->ParamGroups()[0].values[0].second, 1e-2);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
