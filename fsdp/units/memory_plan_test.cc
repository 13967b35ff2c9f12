// SPDX-License-Identifier: Apache-2.0
//
// Predicted against measured memory, to the byte: layers here allocate nothing, so all that a device counts is FSDP's.
#include "fsdp/fsdp/units/memory_plan.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

struct Case {
  std::string name;
  int world_size = 3;
  FsdpOptions options;
  bool accumulates = false;
  bool frozen = false;  // the largest unit
};

// A root with its own parameter over four units of unequal, odd sizes, of which one holds another.
std::unique_ptr<TestSequence> MakeModel() {
  auto root = std::make_unique<TestSequence>();
  root->AddUnused("scale", {13});
  for (const int64_t size : {101, 7, 55}) root->AddSequence("Unit")->AddUnused("weight", {size, 3});
  TestSequence* outer = root->AddSequence("Unit");
  outer->AddUnused("weight", {5, 9});
  outer->AddSequence("Unit")->AddUnused("weight", {31});
  return root;
}

absl::Status ExpectPlanIsPeak(const Case& c, std::shared_ptr<ProcessGroup> group) {
  Device& device = *group->device();
  FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(device, DType::kInt32, {1}));
  const int64_t before = device.allocated_bytes();
  auto module = MakeModel();
  for (const auto& [name, parameter] : module->NamedParameters()) {
    if (parameter->shape.dim(0) == 101) parameter->requires_grad = !c.frozen;
  }
  FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(module), group, c.options));
  const MemoryPlan plan = model->memory_plan();
  device.ResetPeak();
  for (int step = 0; step < 3; ++step) {
    for (const bool sync : {false, true}) {
      if (!sync && !c.accumulates) continue;
      Tape tape = model->NewTape();
      model->set_requires_gradient_sync(sync);
      FSDP_RETURN_IF_ERROR(model->Forward(x, tape).status());
      FSDP_RETURN_IF_ERROR(model->Backward(x, tape).status());
      FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
    }
  }
  EXPECT_EQ(device.peak_allocated_bytes() - before, plan.DeviceBytes(c.accumulates) + plan.pinned_shards);
  EXPECT_GT(plan.DeviceBytes(false), 0);
  return absl::OkStatus();
}

class MemoryPlanTest : public testing::TestWithParam<Case> {};

TEST_P(MemoryPlanTest, PredictsThePeakToTheByte) {
  EXPECT_OK(RunRanks(GetParam().world_size, [](std::shared_ptr<ProcessGroup> group) {
    return ExpectPlanIsPeak(GetParam(), std::move(group));
  }));
}

std::vector<Case> Cases() {
  FsdpOptions base;
  base.auto_wrap_policy = LambdaWrapPolicy([](Module& module) { return module.type_name() == "Unit"; });
  std::vector<Case> cases;
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
                              ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    FsdpOptions options = base;
    options.sharding_strategy = strategy;
    if (IsHybrid(strategy)) options.shard_group_size = 2;
    const int world_size = IsHybrid(strategy) ? 4 : 3;
    const std::string name(ShardingStrategyName(strategy));
    cases.push_back({name, world_size, options, false});
    cases.push_back({name + "_accumulating", world_size, options, true});
    options.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
    cases.push_back({name + "_bfloat16", world_size, options, true});
    options.cpu_offload.offload_params = true;
    cases.push_back({name + "_bfloat16_offload", world_size, options, false});
  }
  FsdpOptions unlimited = base;
  unlimited.limit_all_gathers = false;
  cases.push_back({"unlimited", 3, unlimited, false});
  FsdpOptions ahead = base;
  ahead.forward_prefetch = true;
  cases.push_back({"forward_prefetch", 2, ahead, false});
  FsdpOptions low = base;
  low.mixed_precision = {.param_dtype = DType::kBFloat16, .keep_low_precision_grads = true};
  low.full_precision_in_eval = true;
  cases.push_back({"low_precision_grads_full_precision_eval", 2, low, false});
  cases.push_back({"one_rank", 1, base, true});
  FsdpOptions casts = base;
  casts.mixed_precision = {.param_dtype = DType::kBFloat16};
  casts.optimizer_casts = true;
  cases.push_back({"optimizer_casts", 3, casts, true});
  cases.push_back({"optimizer_casts_one_rank", 1, casts, false});
  cases.push_back({"frozen", 3, base, true, /*frozen=*/true});
  cases.push_back({"frozen_low_precision_grads", 2, low, true, /*frozen=*/true});
  cases.push_back({"frozen_optimizer_casts", 3, casts, true, /*frozen=*/true});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Strategies, MemoryPlanTest, testing::ValuesIn(Cases()),
                         [](const auto& c) { return c.param.name; });

// Otherwise a gradient as long as the parameter would be allocated and never read.
TEST(MemoryPlanOfUnitsTest, AUnitThatIsFrozenWholeHasNoGradientShard) {
  EXPECT_OK(RunRanks(1, [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    int64_t shards[2];
    for (const bool frozen : {false, true}) {
      auto module = MakeModel();
      for (const auto& [name, parameter] : module->NamedParameters()) {
        if (parameter->shape.dim(0) == 101) parameter->requires_grad = !frozen;
      }
      FsdpOptions options;
      options.auto_wrap_policy = LambdaWrapPolicy([](Module& unit) { return unit.type_name() == "Unit"; });
      FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
      shards[frozen ? 1 : 0] = model->memory_plan().shards;
    }
    EXPECT_EQ(shards[0] - shards[1], 101 * 3 * 4);
    return absl::OkStatus();
  }));
}

// The plan follows from the slots, so the peak would be as planned even if no code read the option.
TEST(MemoryPlanOfUnitsTest, LimitAllGathersLeavesTwoSlotsAndWithoutItEveryUnitHasOne) {
  EXPECT_OK(RunRanks(2, [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    for (const bool limit : {true, false}) {
      auto root = std::make_unique<TestSequence>();
      for (int unit = 0; unit < 4; ++unit) root->AddSequence("Unit")->AddUnused("weight", {5});
      FsdpOptions options;
      options.auto_wrap_policy = LambdaWrapPolicy([](Module& unit) { return unit.type_name() == "Unit"; });
      options.limit_all_gathers = limit;
      FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(root), group, options));
      EXPECT_EQ(model->memory_plan().slots.unsharded, limit ? 2 : 4);
    }
    return absl::OkStatus();
  }));
}

TEST(MemoryPlanOfUnitsTest, ReadsAsALineForEachPurpose) {
  MemoryPlan plan;
  plan.shards = 80;
  plan.unsharded_slot = 100;
  plan.accumulated = 7;
  const std::string text = plan.ToString(/*accumulates=*/true);
  EXPECT_THAT(text, testing::HasSubstr("parameter and gradient shards: 80 bytes\n"));
  EXPECT_THAT(text, testing::HasSubstr("unsharded parameters, 2 slots: 200 bytes\n"));
  EXPECT_THAT(text, testing::HasSubstr("together, on the device: 287 bytes\n"));
}

}  // namespace
}  // namespace fsdp
