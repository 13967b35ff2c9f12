// SPDX-License-Identifier: Apache-2.0
//
// optimizer_casts: the same bits as casting at every all-gather, whatever code changed the shards in between.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/units/units_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The action between two steps.
using Between = std::function<absl::Status(TestModel& made)>;

FsdpOptions LowOptions(ShardingStrategy strategy, bool casts) {
  FsdpOptions options = BlockOptions();
  options.sharding_strategy = strategy;
  options.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  options.optimizer_casts = casts;
  return options;
}

absl::StatusOr<WholeTensors> Train(int world_size, const FsdpOptions& options, const Between& between) {
  WholeTensors parameters;
  FSDP_RETURN_IF_ERROR(RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(std::move(group), options));
    for (int step = 0; step < 4; ++step) {
      FSDP_RETURN_IF_ERROR(made.Train(step));
      if (step == 1) FSDP_RETURN_IF_ERROR(between(made));
    }
    parameters.AddParameters(made.model->parameters());
    return absl::OkStatus();
  }));
  return parameters;
}

void ExpectSameWithAndWithout(const Between& between) {
  for (const ShardingStrategy strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    for (const int world_size : {1, 3}) {
      ASSERT_OK_AND_ASSIGN(const WholeTensors with, Train(world_size, LowOptions(strategy, true), between));
      ASSERT_OK_AND_ASSIGN(const WholeTensors without, Train(world_size, LowOptions(strategy, false), between));
      EXPECT_FALSE(with.empty());
      EXPECT_TRUE(with == without) << ShardingStrategyName(strategy) << " " << world_size;
    }
  }
}

// Divides every parameter by four, in place.
void Quarter(TestModel& made) {
  for (ShardedParameter* parameter : made.model->parameters()) {
    for (int64_t i = 0; i < parameter->interval.size(); ++i) parameter->data.data_as<float>()[i] *= 0.25f;
  }
}

TEST(OptimizerCastsTest, TrainsToTheBitsOfCastingAtTheAllGather) {
  ExpectSameWithAndWithout([](TestModel&) { return absl::OkStatus(); });
}

TEST(OptimizerCastsTest, EveryParameterIsCastByTheOptimizer) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, LowOptions(ShardingStrategy::kFullShard, true)));
    for (const ShardedParameter* parameter : made.model->parameters()) EXPECT_FALSE(parameter->compute_copy_current);
    FSDP_RETURN_IF_ERROR(made.Train(0));
    for (const ShardedParameter* parameter : made.model->parameters()) {
      EXPECT_EQ(parameter->compute_copy.dtype(), DType::kBFloat16);
      EXPECT_TRUE(parameter->compute_copy_current);
    }
    return absl::OkStatus();
  }));
}

TEST(OptimizerCastsTest, ALoadedStateDictIsSeen) {
  ExpectSameWithAndWithout([](TestModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(StateDict state, made.model->GetStateDict());
    FSDP_RETURN_IF_ERROR(made.Train(7));
    return made.model->LoadStateDict(state);
  });
}

TEST(OptimizerCastsTest, RestoredShardsAreSeen) {
  ExpectSameWithAndWithout([](TestModel& made) {
    return made.model->Restore(nullptr, [&](StateDict&) {
      Quarter(made);
      return absl::OkStatus();
    });
  });
}

TEST(OptimizerCastsTest, ReplacedDataIsSeen) {
  ExpectSameWithAndWithout([](TestModel& made) -> absl::Status {
    for (ShardedParameter* parameter : made.model->parameters()) {
      if (parameter->interval.empty()) continue;
      FSDP_ASSIGN_OR_RETURN(Tensor other, Tensor::Empty(*parameter->device, DType::kFloat32, parameter->data.shape()));
      for (int64_t i = 0; i < other.numel(); ++i) other.data_as<float>()[i] = 0.01f * static_cast<float>(i % 5);
      parameter->data = other;
    }
    return absl::OkStatus();
  });
}

TEST(OptimizerCastsTest, AWriteToAShardMustBeReported) {
  ExpectSameWithAndWithout([](TestModel& made) {
    Quarter(made);
    for (ShardedParameter* parameter : made.model->parameters()) parameter->compute_copy_current = false;
    return absl::OkStatus();
  });
}

TEST(OptimizerCastsTest, SummonedParametersThatChangedAreSeen) {
  ExpectSameWithAndWithout([](TestModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<SummonFullParamsGuard> guard, made.model->SummonFullParams({}));
    for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
      FSDP_ASSIGN_OR_RETURN(const Tensor data, parameter->Data());
      for (int64_t i = 0; i < data.numel(); ++i) data.data_as<float>()[i] *= 0.5f;
    }
    return guard->Close();
  });
}

TEST(OptimizerCastsTest, RowsOfFullyShardTrainToTheSameBits) {
  for (const int world_size : {1, 3}) {
    WholeTensors with, without;
    for (const bool casts : {true, false}) {
      ASSERT_OK(RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        UnitSettings settings = Fsdp2Settings();
        ApplyPolicy({.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32}, settings);
        settings.optimizer_casts = casts;
        FSDP_ASSIGN_OR_RETURN(TestUnits made, MakeTestUnits(group, group->rank(), settings));
        for (int step = 0; step < 3; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
        (casts ? with : without).AddParameters(made.parameters());
        return absl::OkStatus();
      }));
    }
    EXPECT_FALSE(with.empty());
    EXPECT_TRUE(with == without) << world_size;
  }
}

}  // namespace
}  // namespace fsdp
