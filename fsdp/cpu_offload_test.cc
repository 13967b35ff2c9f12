// SPDX-License-Identifier: Apache-2.0
//
// Offload: the memory of shards, gradients and optimizer state, and that it changes no bit.
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/fsdp/units/units_testutil.h"
#include "fsdp/optim/sgd.h"
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
// local: the two others accumulate over a synchronised backward. PyTorch's FSDP1 loses the earlier gradient there.
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
    // Optimizer state, as large as the shards, is in host memory and not counted on the device.
    FSDP_RETURN_IF_ERROR(made.Train(0));
    EXPECT_EQ(device.allocated_bytes(), plan.DeviceBytes(false) + plan.pinned_shards);
    return absl::OkStatus();
  }));
}

// By the options of FullyShard; the bits do not show whether they took effect.
TEST(CpuOffloadTest, FullyShardKeepsShardsWhereItsOffloadPolicySays) {
  for (const OffloadPolicy& policy : {OffloadPolicy(), OffloadPolicy(CpuOffloadPolicy{.pin_memory = true}),
                                      OffloadPolicy(CpuOffloadPolicy{.pin_memory = false})}) {
    const bool offloaded = policy.has_value(), pinned = offloaded && policy->pin_memory;
    ASSERT_OK(RunFullyShard(2, {.offload_policy = policy}, [&](TestFullyShard& test) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
      for (const ShardedParameter* p : parameters) EXPECT_EQ(p->device != &test.device(), offloaded) << p->fqn;
      FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*test.root));
      const MemoryPlan& plan = model->runtime().plan();
      EXPECT_EQ(plan.shards > 0, !offloaded);
      EXPECT_EQ(plan.pinned_shards > 0, pinned);
      EXPECT_EQ(plan.pageable_shards > 0, offloaded && !pinned);
      EXPECT_EQ(test.device().allocated_bytes(), plan.DeviceBytes(false) + plan.pinned_shards);
      return test.ForwardAndBackward();
    }));
  }
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
      // The device does not count memory that is not pinned.
      EXPECT_EQ(group->device()->allocated_bytes(), plan.DeviceBytes(false) + plan.pinned_shards);
      for (int step = 0; step < 3; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
      by_pinning[pin].AddParameters(made.parameters());
      return absl::OkStatus();
    }));
  }
  EXPECT_TRUE(by_pinning[0] == by_pinning[1]);
}

// The gradients of all parameters, by name, as they are in memory.
WholeTensors GradientsOf(const std::vector<ShardedParameter*>& parameters) {
  WholeTensors gradients;
  gradients.AddGradients(parameters);
  return gradients;
}

// Unscaling by a power of two is exact, so every element is halved, in either memory. Then one element of `bad` is
// infinite on the ranks that have some of it: no rank steps.
absl::Status ExpectScalerWorks(ProcessGroup& group, Stream& stream, const std::vector<ShardedParameter*>& parameters,
                               const ShardedParameter& bad) {
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  const WholeTensors before = GradientsOf(parameters);
  Sgd optimizer(parameters, SgdOptions{.lr = 1e-3});
  ShardedGradScaler scaler(group, {.init_scale = 2});
  FSDP_RETURN_IF_ERROR(scaler.Unscale(optimizer, stream));
  const WholeTensors unscaled = GradientsOf(parameters);
  for (const auto& [name, values] : before.tensors()) {
    std::vector<float> half = values;
    for (float& value : half) value /= 2;
    EXPECT_EQ(unscaled.tensors().at(name), half) << name;
  }
  FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer, stream));
  EXPECT_TRUE(stepped);
  FSDP_RETURN_IF_ERROR(scaler.Update());
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  if (!bad.interval.empty()) bad.grad.data_as<float>()[0] = HUGE_VALF;
  FSDP_ASSIGN_OR_RETURN(const bool stepped_again, scaler.Step(optimizer, stream));
  EXPECT_FALSE(stepped_again) << bad.fqn;
  return scaler.Update();
}

TEST(CpuOffloadTest, TheGradScalerUnscalesAndChecksGradientsWhereverTheyLie) {
  FsdpOptions mixed = BlockOptions();  // the blocks are offloaded, the root is not
  mixed.auto_wrap_policy = CustomWrapPolicy([](Module& module) -> std::optional<UnitOverrides> {
    if (dynamic_cast<Gpt2Block*>(&module) == nullptr) return std::nullopt;
    return UnitOverrides{.cpu_offload = CpuOffload{.offload_params = true}};
  });
  for (const FsdpOptions& options : {Options(Strategy::kFullShard, true, false), mixed}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
      const std::vector<ShardedParameter*> parameters = made.model->parameters();
      for (const ShardedParameter* bad : {parameters.front(), parameters.back()}) {
        FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());
        FSDP_RETURN_IF_ERROR(ExpectScalerWorks(*group, made.model->stream(), parameters, *bad));
        made.optimizer->ZeroGrad();
      }
      return absl::OkStatus();
    }));
  }
  for (const bool pin : {false, true}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      UnitSettings settings = Fsdp2Settings();
      settings.offload = CpuOffloadPolicy{.pin_memory = pin};
      FSDP_ASSIGN_OR_RETURN(TestUnits made, MakeTestUnits(group, group->rank(), settings));
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(0));
      Stream& stream = made.executor->runtime().compute_stream();
      return ExpectScalerWorks(*group, stream, made.parameters(), *made.parameters().back());
    }));
  }
}

}  // namespace
}  // namespace fsdp
