// SPDX-License-Identifier: Apache-2.0
//
// Memory planned from shapes against the plan of the units that are made of the same shapes.
#include "fsdp/fsdp/step_time/step_memory.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

struct Case {
  std::string name;
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  DType param_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  bool limit_all_gathers = true;
  bool forward_prefetch = false;
  bool use_orig_params = false;
};

// A root with its own parameter over units of odd sizes.
constexpr int64_t kSizes[] = {101, 7, 55, 20};

std::unique_ptr<TestSequence> MakeModel() {
  auto root = std::make_unique<TestSequence>();
  root->AddUnused("scale", {13});
  for (const int64_t size : kSizes) root->AddSequence("Unit")->AddUnused("weight", {size, 3});
  return root;
}

std::vector<std::vector<ShardLayout::Entry>> ShapesOfModel() {
  std::vector<std::vector<ShardLayout::Entry>> units = {{{"scale", {13}, 0}}};
  for (const int64_t size : kSizes) units.push_back({{"weight", {size, 3}, 0}});
  return units;
}

absl::Status ExpectSamePlan(const Case& c, std::shared_ptr<ProcessGroup> group) {
  FsdpOptions options;
  options.sharding_strategy = c.strategy;
  if (IsHybrid(c.strategy)) options.shard_group_size = 2;
  options.mixed_precision = {.param_dtype = c.param_dtype, .reduce_dtype = c.reduce_dtype};
  options.auto_wrap_policy = LambdaWrapPolicy([](Module& module) { return module.type_name() == "Unit"; });
  options.limit_all_gathers = c.limit_all_gathers;
  options.forward_prefetch = c.forward_prefetch;
  options.use_orig_params = c.use_orig_params;
  FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(MakeModel(), group, options));
  const MemoryPlan real = model->memory_plan();
  const ShardingPlan plan = {.strategy = c.strategy,
                             .shard_ranks = IsHybrid(c.strategy) ? 2 : 4,
                             .layout = c.use_orig_params ? LayoutKind::kFlatAligned : LayoutKind::kFlat,
                             .param_dtype = c.param_dtype,
                             .reduce_dtype = c.reduce_dtype,
                             .forward_prefetch = c.forward_prefetch,
                             .limit_all_gathers = c.limit_all_gathers};
  const MemoryPlan planned = PlanMemory(LayoutsOf(ShapesOfModel(), plan), plan);
  EXPECT_EQ(planned.ToString(true), real.ToString(true));
  EXPECT_EQ(planned.DeviceBytes(false), real.DeviceBytes(false));
  EXPECT_EQ(planned.DeviceBytes(true), real.DeviceBytes(true));
  EXPECT_GT(planned.DeviceBytes(false), 0);
  return absl::OkStatus();
}

class StepMemoryTest : public testing::TestWithParam<Case> {};

TEST_P(StepMemoryTest, IsThatOfUnitsOfTheSameShapes) {
  EXPECT_OK(
      RunRanks(4, [](std::shared_ptr<ProcessGroup> group) { return ExpectSamePlan(GetParam(), std::move(group)); }));
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
                              ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    const std::string name(ShardingStrategyName(strategy));
    cases.push_back({name, strategy});
    cases.push_back({name + "_bfloat16", strategy, DType::kBFloat16, DType::kFloat32});
    cases.push_back({name + "_bfloat16_reduced", strategy, DType::kBFloat16, DType::kBFloat16});
  }
  cases.push_back({.name = "unlimited", .limit_all_gathers = false});
  cases.push_back({.name = "forward_prefetch", .forward_prefetch = true});
  cases.push_back({.name = "aligned", .param_dtype = DType::kBFloat16, .use_orig_params = true});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Plans, StepMemoryTest, testing::ValuesIn(Cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace fsdp
