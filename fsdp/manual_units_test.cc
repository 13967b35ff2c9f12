// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/manual_units.h"

#include <memory>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
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
  units.FinishBackward();
  return absl::OkStatus();
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
        units->FinishStep();
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

}  // namespace
}  // namespace fsdp
