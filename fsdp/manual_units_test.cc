// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/manual_units.h"

#include <memory>
#include <variant>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

std::vector<ManualUnits::UnitSpec> Specs() {
  return {{"first", {{"w", {2, 3}, Initializer::Constant(1)}, {"b", {3}, Initializer::Constant(2)}}},
          {"second", {{"v", {7}, Initializer::Constant(3)}}}};
}

// Each rank adds rank + 1 to every gradient, and SGD with rate 1 steps: weights fall by the mean.
absl::Status Step(ManualUnits& units, int rank, const FsdpOptions& options) {
  for (const int unit : {0, 1}) {
    FSDP_RETURN_IF_ERROR(units.Prefetch(unit));
    FSDP_ASSIGN_OR_RETURN(const auto weights, units.Unshard(unit));
    EXPECT_EQ(weights.size(), unit == 0 ? 2u : 1u);
    EXPECT_EQ(weights[0].dtype(), options.mixed_precision.param_dtype.value_or(DType::kFloat32));
    FSDP_RETURN_IF_ERROR(units.Reshard(unit));
  }
  for (const int unit : {1, 0}) {
    FSDP_ASSIGN_OR_RETURN(const auto grads, units.Gradients(unit));
    FSDP_RETURN_IF_ERROR(units.stream().Synchronize());
    for (const Tensor& grad : grads) {
      if (grad.dtype() != DType::kFloat32) continue;
      for (int64_t i = 0; i < grad.numel(); ++i) grad.data_as<float>()[i] += static_cast<float>(rank + 1);
    }
    FSDP_RETURN_IF_ERROR(units.Reduce(unit));
  }
  return units.FinishBackward();
}

TEST(ManualUnitsTest, FourCallsTrainOnPlainBuffersUnderEveryStrategy) {
  for (const auto strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard}) {
    SCOPED_TRACE(ShardingStrategyName(strategy));
    ASSERT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FsdpOptions options{.sharding_strategy = strategy};
      if (IsHybrid(strategy)) options.shard_group_size = 2;
      FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), /*units_at_once=*/1, options));
      Sgd optimizer(units->parameters(), SgdOptions{.lr = 1});
      for (int step = 0; step < 2; ++step) {
        FSDP_RETURN_IF_ERROR(Step(*units, group->rank(), options));
        FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
        optimizer.ZeroGrad();
        FSDP_RETURN_IF_ERROR(units->FinishStep());
      }
      FSDP_ASSIGN_OR_RETURN(const auto first, units->Unshard(0));
      FSDP_RETURN_IF_ERROR(units->stream().Synchronize());
      for (int i = 0; i < 6; ++i) EXPECT_EQ(first[0].data_as<float>()[i], 1 - 2 * 2.5f) << i;
      for (int i = 0; i < 3; ++i) EXPECT_EQ(first[1].data_as<float>()[i], 2 - 2 * 2.5f) << i;
      FSDP_RETURN_IF_ERROR(units->Reshard(0));
      FSDP_ASSIGN_OR_RETURN(const auto second, units->Unshard(1));
      FSDP_RETURN_IF_ERROR(units->stream().Synchronize());
      for (int i = 0; i < 7; ++i) EXPECT_EQ(second[0].data_as<float>()[i], 3 - 2 * 2.5f) << i;
      return absl::OkStatus();
    }));
  }
}

TEST(ManualUnitsTest, MixedPrecisionGivesWeightsInParamDtype) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const FsdpOptions options{.mixed_precision = {.param_dtype = DType::kBFloat16}};
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), /*units_at_once=*/2, options));
    return Step(*units, group->rank(), options);
  }));
}

TEST(ManualUnitsTest, MoreUnitsAtOnceThanWereAskedForIsAnError) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), /*units_at_once=*/1));
    FSDP_RETURN_IF_ERROR(units->Unshard(0).status());
    EXPECT_THAT(units->Unshard(1).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("unit second: all 1 slots for unsharded parameters are in use")));
    return units->stream().Synchronize();
  }));
}

TEST(ManualUnitsTest, AUnitNeedsANameAndParametersAndAGradientToReduce) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    EXPECT_THAT(
        ManualUnits::Create(group, {{"empty", {}}}, 1).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unit \"empty\": expected a name and at least")));
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), 1));
    EXPECT_THAT(units->Reduce(0),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("unit first: no gradient to reduce")));
    return absl::OkStatus();
  }));
}

// A backward of every unit in which each rank adds `value` to every gradient.
absl::Status Backward(ManualUnits& units, float value) {
  for (const int unit : {1, 0}) {
    FSDP_ASSIGN_OR_RETURN(const auto grads, units.Gradients(unit));
    FSDP_RETURN_IF_ERROR(units.stream().Synchronize());
    for (const Tensor& grad : grads) {
      for (int64_t i = 0; i < grad.numel(); ++i) grad.data_as<float>()[i] += value;
    }
    FSDP_RETURN_IF_ERROR(units.Reduce(unit));
  }
  return absl::OkStatus();
}

absl::Status StepOf(ManualUnits& units, Optimizer& optimizer, float value) {
  FSDP_RETURN_IF_ERROR(Backward(units, value));
  FSDP_RETURN_IF_ERROR(units.FinishBackward());
  FSDP_RETURN_IF_ERROR(optimizer.Step(units.stream()));
  optimizer.ZeroGrad();
  return units.FinishStep();
}

// The first element of a unit's first parameter.
absl::StatusOr<float> FirstOf(ManualUnits& units, int unit) {
  FSDP_ASSIGN_OR_RETURN(const auto whole, units.Unshard(unit));
  FSDP_RETURN_IF_ERROR(units.stream().Synchronize());
  const float value = whole[0].data_as<float>()[0];
  FSDP_RETURN_IF_ERROR(units.Reshard(unit));
  return value;
}

TEST(ManualUnitsTest, AWorldOfOneTrains) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), 1));
    Sgd optimizer(units->parameters(), SgdOptions{.lr = 1});
    FSDP_RETURN_IF_ERROR(StepOf(*units, optimizer, 4));
    EXPECT_THAT(FirstOf(*units, 1), IsOkAndHolds(3 - 4));
    return absl::OkStatus();
  }));
}

TEST(ManualUnitsTest, MicroStepsAreAddedWithoutCommunicationUntilTheLast) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
    SCOPED_TRACE(ShardingStrategyName(strategy));
    auto log = std::make_shared<RecordingProcessGroup::Log>();
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      std::shared_ptr<ProcessGroup> used = group;
      if (group->rank() == 0) used = std::make_shared<RecordingProcessGroup>(group, "all", log);
      FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(used, Specs(), 1, {.sharding_strategy = strategy}));
      Sgd optimizer(units->parameters(), SgdOptions{.lr = 1});
      if (group->rank() == 0) log->clear();
      FSDP_RETURN_IF_ERROR(units->set_requires_gradient_sync(false));
      for (const float value : {1, 2}) FSDP_RETURN_IF_ERROR(Backward(*units, value + group->rank()));
      EXPECT_TRUE(group->rank() != 0 || log->empty());
      FSDP_RETURN_IF_ERROR(units->set_requires_gradient_sync(true));
      FSDP_RETURN_IF_ERROR(StepOf(*units, optimizer, 4 + group->rank()));
      EXPECT_THAT(FirstOf(*units, 1), IsOkAndHolds(3 - (1 + 2 + 4 + 1.5f)));
      EXPECT_THAT(FirstOf(*units, 0), IsOkAndHolds(1 - (1 + 2 + 4 + 1.5f)));
      return absl::OkStatus();
    }));
  }
}

TEST(ManualUnitsTest, AStepThatLeavesOutGradientsThatAreKeptIsAnError) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), 1));
    Sgd optimizer(units->parameters(), SgdOptions{.lr = 1});
    FSDP_RETURN_IF_ERROR(units->set_requires_gradient_sync(false));
    FSDP_RETURN_IF_ERROR(Backward(*units, 1));
    FSDP_RETURN_IF_ERROR(units->FinishBackward());
    units->parameters()[0]->MarkChanged();  // what an optimizer's step does
    EXPECT_THAT(units->FinishStep(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                              HasSubstr("stepped without the gradients of unit first")));
    return absl::OkStatus();
  }));
}

TEST(ManualUnitsTest, ClippingScalesToTheNormOverAllRanks) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), 1));
    Sgd optimizer(units->parameters(), SgdOptions{.lr = 1});
    FSDP_RETURN_IF_ERROR(Backward(*units, 2));
    FSDP_RETURN_IF_ERROR(units->FinishBackward());
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, units->GetFullGradient("b"));
    EXPECT_EQ(grad.shape(), Shape({3}));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(grad.data_as<float>()[i], 2);
    EXPECT_THAT(units->GetFullGradient("c").status(),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("gradient of \"c\"")));
    FSDP_ASSIGN_OR_RETURN(const float norm, units->ClipGradNorm(1));
    EXPECT_FLOAT_EQ(norm, 8);  // 16 gradients of 2
    FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
    FSDP_RETURN_IF_ERROR(units->FinishStep());
    FSDP_ASSIGN_OR_RETURN(const float clipped, FirstOf(*units, 1));
    EXPECT_NEAR(clipped, 3 - 0.25f, 1e-6);
    optimizer.ZeroGrad();

    FSDP_RETURN_IF_ERROR(Backward(*units, 2));
    FSDP_RETURN_IF_ERROR(units->FinishBackward());
    FSDP_ASSIGN_OR_RETURN(const GradClip clip, units->ClipGradNormAsync(1));
    optimizer.set_grad_factor(clip.coefficient());
    FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
    FSDP_RETURN_IF_ERROR(units->FinishStep());
    FSDP_ASSIGN_OR_RETURN(const float twice, FirstOf(*units, 1));
    EXPECT_NEAR(twice, 3 - 0.5f, 1e-6);
    EXPECT_THAT(clip.Norm(), IsOkAndHolds(8));
    return absl::OkStatus();
  }));
}

TEST(ManualUnitsTest, AStateOfEachKindLoadsWhereItCameFrom) {
  const StateDictSettings kinds[] = {FullStateDictConfig{}, ShardedStateDictConfig{},
                                     StateDictSettings(LocalStateDictConfig{.offload_to_cpu = true},
                                                       LocalOptimStateDictConfig{.offload_to_cpu = true})};
  for (const StateDictSettings& kind : kinds) {
    SCOPED_TRACE(static_cast<int>(kind.type()));
    ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), 1));
      AdamW optimizer(units->parameters(), {.lr = 0.5f});
      FSDP_RETURN_IF_ERROR(StepOf(*units, optimizer, 1));
      units->set_state_dict_settings(kind);
      FSDP_ASSIGN_OR_RETURN(StateDict state, units->GetStateDict());
      FSDP_RETURN_IF_ERROR(units->AddOptimStateDict(optimizer, state));
      FSDP_ASSIGN_OR_RETURN(const float saved, FirstOf(*units, 1));
      FSDP_RETURN_IF_ERROR(StepOf(*units, optimizer, 1));
      FSDP_ASSIGN_OR_RETURN(const float two_steps, FirstOf(*units, 1));
      EXPECT_NE(saved, two_steps);

      FSDP_RETURN_IF_ERROR(units->LoadStateDict(state).status());
      FSDP_RETURN_IF_ERROR(units->LoadOptimStateDict(state, optimizer).status());
      EXPECT_THAT(FirstOf(*units, 1), IsOkAndHolds(saved));
      FSDP_RETURN_IF_ERROR(StepOf(*units, optimizer, 1));
      EXPECT_THAT(FirstOf(*units, 1), IsOkAndHolds(two_steps));
      return absl::OkStatus();
    }));
  }
}

TEST(ManualUnitsTest, RestoreFillsTheShardsAndComparesAttributes) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), 1));
    AdamW optimizer(units->parameters(), {.lr = 0.5f});
    const auto load = [](StateDict& wanted) {
      for (const auto& [key, value] : wanted.entries()) {
        const auto* tensor = std::get_if<ShardedTensor>(&value);
        if (tensor == nullptr) continue;
        for (const auto& shard : tensor->shards) {
          for (int64_t i = 0; i < shard.data.numel(); ++i) shard.data.data_as<float>()[i] = 5;
        }
      }
      wanted.attributes = {{"hidden", 33}};
      return absl::OkStatus();
    };
    FSDP_RETURN_IF_ERROR(units->Restore(&optimizer, load, {.required = {{"hidden", 33}}}).status());
    EXPECT_THAT(FirstOf(*units, 0), IsOkAndHolds(5));
    EXPECT_THAT(units->Restore(&optimizer, load, {.required = {{"hidden", 34}}}).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("hidden")));
    return absl::OkStatus();
  }));
}

TEST(ManualUnitsTest, AStepThatIsNotFinishedIsAnErrorOfTheNextCall) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), 1));
    Sgd optimizer(units->parameters(), SgdOptions{.lr = 1});
    FSDP_RETURN_IF_ERROR(Backward(*units, 1));
    FSDP_RETURN_IF_ERROR(units->FinishBackward());
    FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
    const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("call FinishStep after"));
    EXPECT_THAT(units->Unshard(0).status(), refused);
    EXPECT_THAT(units->Prefetch(0), refused);
    EXPECT_THAT(units->Gradients(0).status(), refused);
    EXPECT_THAT(units->GetStateDict().status(), refused);
    FSDP_RETURN_IF_ERROR(units->FinishStep());
    EXPECT_THAT(FirstOf(*units, 1), IsOkAndHolds(2));
    return absl::OkStatus();
  }));
}

TEST(ManualUnitsTest, AStepBeforeFinishBackwardIsAnErrorUntilValuesAreLoaded) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), 1));
    Sgd optimizer(units->parameters(), SgdOptions{.lr = 1});
    FSDP_ASSIGN_OR_RETURN(const StateDict before, units->GetStateDict());
    FSDP_RETURN_IF_ERROR(Backward(*units, 1));
    FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
    const auto refused =
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the optimizer's step came before FinishBackward"));
    EXPECT_THAT(units->FinishStep(), refused);
    EXPECT_THAT(units->Unshard(0).status(), refused);
    EXPECT_THAT(units->FinishBackward(), refused);
    FSDP_RETURN_IF_ERROR(units->LoadStateDict(before).status());
    EXPECT_THAT(FirstOf(*units, 1), IsOkAndHolds(3));
    optimizer.ZeroGrad();
    FSDP_RETURN_IF_ERROR(StepOf(*units, optimizer, 1));
    EXPECT_THAT(FirstOf(*units, 1), IsOkAndHolds(2));
    return absl::OkStatus();
  }));
}

TEST(ManualUnitsTest, ABackwardThatIsNotReducedOrNotFinishedIsNamed) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, Specs(), 1));
    FSDP_RETURN_IF_ERROR(units->Gradients(1).status());
    const auto not_reduced =
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Reduce was not, for unit second"));
    EXPECT_THAT(units->FinishBackward(), not_reduced);
    EXPECT_THAT(units->GetStateDict().status(), not_reduced);
    EXPECT_THAT(units->ClipGradNorm(1).status(), not_reduced);
    EXPECT_THAT(units->set_requires_gradient_sync(false),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("unit second is between")));
    FSDP_RETURN_IF_ERROR(units->Reduce(1));
    const auto not_finished = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("call FinishBackward first"));
    EXPECT_THAT(units->ClipGradNorm(1).status(), not_finished);
    EXPECT_THAT(units->ClipGradNormAsync(1).status(), not_finished);
    EXPECT_THAT(units->GetFullGradient("w").status(), not_finished);
    return units->FinishBackward();
  }));
}

TEST(ManualUnitsTest, AFrozenUnitHasNoGradientsAndDoesNotChange) {
  auto specs = Specs();
  specs[1].parameters[0].requires_grad = false;
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto units, ManualUnits::Create(group, specs, 1));
    FSDP_ASSIGN_OR_RETURN(const auto none, units->Gradients(1));
    EXPECT_FALSE(none[0].defined());
    FSDP_RETURN_IF_ERROR(units->Reduce(1));
    FSDP_RETURN_IF_ERROR(units->FinishBackward());
    EXPECT_THAT(FirstOf(*units, 1), IsOkAndHolds(3));
    specs[0].parameters[0].requires_grad = false;
    EXPECT_THAT(ManualUnits::Create(group, specs, 1, {.use_orig_params = false}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unit \"first\" has 1 of 2 parameters")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
