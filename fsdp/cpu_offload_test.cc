// SPDX-License-Identifier: Apache-2.0
//
// Offload: where shards, gradients and optimizer state live, and that no bit changes by it.
#include <memory>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/test_model.h"
#include "fsdp/fsdp/units/test_units.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Strategy = ShardingStrategy;

constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard,
                                    Strategy::kHybridShard};

FsdpOptions Options(Strategy strategy, bool offload, bool mixed) {
  FsdpOptions options = BlockOptions();
  options.sharding_strategy = strategy;
  if (IsHybrid(strategy)) options.shard_group_size = 2;
  options.cpu_offload.offload_params = offload;
  if (mixed) options.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  return options;
}

// Trained parameters, after two ordinary steps and one of three micro-steps of which only the first keeps its gradients
// local: the two others accumulate over a synchronised backward, where PyTorch's FSDP1 loses the earlier.
absl::StatusOr<WholeTensors> Train(const FsdpOptions& options) {
  WholeTensors trained;
  FSDP_RETURN_IF_ERROR(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
    {
      NoSyncGuard guard(*made.model);
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(2).status());
    }
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(3).status());
    FSDP_RETURN_IF_ERROR(made.Train(4));
    trained.AddParameters(made.model->parameters());
    return absl::OkStatus();
  }));
  return trained;
}

TEST(CpuOffloadTest, TrainsToTheSameBitsAlsoWhenGradientsAccumulate) {
  for (const Strategy strategy : kStrategies) {
    for (const bool mixed : {false, true}) {
      SCOPED_TRACE(testing::Message() << ShardingStrategyName(strategy) << (mixed ? " mixed" : ""));
      ASSERT_OK_AND_ASSIGN(const WholeTensors on_device, Train(Options(strategy, /*offload=*/false, mixed)));
      ASSERT_OK_AND_ASSIGN(const WholeTensors on_host, Train(Options(strategy, /*offload=*/true, mixed)));
      EXPECT_TRUE(on_host == on_device);
      EXPECT_FALSE(on_host.empty());
    }
  }
}

TEST(CpuOffloadTest, ShardsAndOptimizerStateLeaveTheDevice) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const Device& device = *group->device();
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, Options(Strategy::kFullShard, true, false)));
    const MemoryPlan& plan = made.model->memory_plan();
    EXPECT_EQ(plan.shards, 0);
    EXPECT_GT(plan.pinned_shards, 0);
    for (const ShardedParameter* p : made.model->parameters()) EXPECT_NE(p->device, &device) << p->fqn;
    // Optimizer state, as large as the shards, is the host's and not counted on the device.
    FSDP_RETURN_IF_ERROR(made.Train(0));
    EXPECT_EQ(device.allocated_bytes(), plan.DeviceBytes(false) + plan.pinned_shards);
    return absl::OkStatus();
  }));
}

TEST(CpuOffloadTest, Fsdp2MayLeaveHostMemoryUnpinned) {
  WholeTensors by_pinning[2];
  for (const bool pin : {false, true}) {
    ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      UnitSettings settings = Fsdp2Settings();
      settings.offload = CpuOffloadPolicy{.pin_memory = pin};
      FSDP_ASSIGN_OR_RETURN(TestUnits made, MakeTestUnits(group, group->rank(), settings));
      const MemoryPlan& plan = made.executor->runtime().plan();
      EXPECT_EQ(plan.pinned_shards > 0, pin);
      EXPECT_EQ(plan.pageable_shards > 0, !pin);
      // Memory that is not pinned is none of the device's business.
      EXPECT_EQ(group->device()->allocated_bytes(), plan.DeviceBytes(false) + plan.pinned_shards);
      for (int step = 0; step < 3; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
      by_pinning[pin].AddParameters(made.parameters());
      return absl::OkStatus();
    }));
  }
  EXPECT_TRUE(by_pinning[0] == by_pinning[1]);
}

}  // namespace
}  // namespace fsdp
