// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/clip_grad_norm.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/units/units_testutil.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sets every element of every gradient to `of` its index in its parameter, so that norms are known and exact.
void SetGradients(const std::vector<ShardedParameter*>& parameters, const std::function<float(int64_t)>& of) {
  for (ShardedParameter* parameter : parameters) {
    parameter->has_grad = true;
    for (int64_t i = 0; i < parameter->interval.size(); ++i) {
      parameter->grad.data_as<float>()[i] = of(parameter->interval.begin + i);
    }
  }
}

void SetGradients(TestModel& made, const std::function<float(int64_t)>& of) {
  SetGradients(made.model->parameters(), of);
}

int64_t TotalNumel(TestModel& made) {
  int64_t total = 0;
  for (const ShardedParameter* parameter : made.model->parameters()) total += parameter->shape.numel();
  return total;
}

// All units sharded; no unit; some units; all units, in host memory.
std::vector<FsdpOptions> Strategies() {
  FsdpOptions no_shard = BlockOptions();
  no_shard.sharding_strategy = ShardingStrategy::kNoShard;
  FsdpOptions offloaded = BlockOptions();
  offloaded.cpu_offload.offload_params = true;
  return {BlockOptions(), no_shard, MixedOptions(), offloaded};
}

class ClipGradNormTest : public testing::TestWithParam<int> {
 protected:
  void Run(const std::function<absl::Status(TestModel&)>& check) {
    for (const FsdpOptions& options : Strategies()) {
      ASSERT_OK(RunRanks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
        return check(made);
      }));
    }
  }
};

TEST_P(ClipGradNormTest, ReturnsThePNormOfAllGradients) {
  Run([](TestModel& made) -> absl::Status {
    SetGradients(made, [](int64_t i) { return i % 2 == 0 ? 0.5f : -0.5f; });
    const auto total = static_cast<float>(TotalNumel(made));
    EXPECT_THAT(made.model->ClipGradNorm(HUGE_VALF, 1), IsOkAndHolds(0.5f * total));
    EXPECT_THAT(made.model->ClipGradNorm(HUGE_VALF), IsOkAndHolds(std::sqrt(0.25f * total)));
    EXPECT_THAT(made.model->ClipGradNorm(HUGE_VALF, 3),
                IsOkAndHolds(testing::FloatNear(0.5f * std::cbrt(total), 1e-5f)));
    EXPECT_THAT(made.model->ClipGradNorm(HUGE_VALF, kInfinity), IsOkAndHolds(0.5f));
    return absl::OkStatus();
  });
}

TEST_P(ClipGradNormTest, TheLargestElementCountsOnWhicheverRankItIs) {
  Run([](TestModel& made) -> absl::Status {
    SetGradients(made, [](int64_t i) { return i == 14 ? -8.0f : 1.0f; });
    EXPECT_THAT(made.model->ClipGradNorm(HUGE_VALF, kInfinity), IsOkAndHolds(8.0f));
    return absl::OkStatus();
  });
}

TEST_P(ClipGradNormTest, ScalesEveryGradientByTheSameFactor) {
  Run([](TestModel& made) -> absl::Status {
    SetGradients(made, [](int64_t) { return 2.0f; });
    FSDP_ASSIGN_OR_RETURN(const float norm, made.model->ClipGradNorm(1.0f, kInfinity));
    EXPECT_EQ(norm, 2.0f);
    for (const ShardedParameter* parameter : made.model->parameters()) {
      for (int64_t i = 0; i < parameter->interval.size(); ++i) {
        EXPECT_EQ(parameter->grad.data_as<float>()[i], 2.0f * (1.0f / (2.0f + 1e-6f)));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ClipGradNormTest, LeavesGradientsBelowTheLimit) {
  Run([](TestModel& made) -> absl::Status {
    SetGradients(made, [](int64_t) { return 2.0f; });
    FSDP_RETURN_IF_ERROR(made.model->ClipGradNorm(3.0f, kInfinity).status());
    for (const ShardedParameter* parameter : made.model->parameters()) {
      for (int64_t i = 0; i < parameter->interval.size(); ++i) EXPECT_EQ(parameter->grad.data_as<float>()[i], 2.0f);
    }
    return absl::OkStatus();
  });
}

TEST_P(ClipGradNormTest, WithoutGradientsTheNormIsZero) {
  Run([](TestModel& made) -> absl::Status {
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());  // leaves numbers in the gradients' memory
    made.optimizer->ZeroGrad();
    for (const double p : {1.0, 2.0, kInfinity}) EXPECT_THAT(made.model->ClipGradNorm(1.0f, p), IsOkAndHolds(0.0f));
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, ClipGradNormTest, testing::Values(1, 2, 3));

// Replicas hold equal gradients, so a sum over them would count each element again. The groups differ in size and the
// ranks of a shard group in their sums: neither group gives the other's result.
float RampOf(int64_t i) { return static_cast<float>(i % 5 + 1); }

// Clips gradients that RampOf set, without changing them.
absl::Status ExpectNormsOfRamps(ModelOperations& model, const std::vector<ShardedParameter*>& parameters) {
  float sum = 0, squares = 0;  // small integers: exact in any order
  for (const ShardedParameter* parameter : parameters) {
    for (int64_t i = 0; i < parameter->shape.numel(); ++i) {
      sum += RampOf(i);
      squares += RampOf(i) * RampOf(i);
    }
  }
  EXPECT_THAT(model.ClipGradNorm(HUGE_VALF, 1), IsOkAndHolds(sum));
  EXPECT_THAT(model.ClipGradNorm(HUGE_VALF, 2), IsOkAndHolds(std::sqrt(squares)));
  EXPECT_THAT(model.ClipGradNorm(HUGE_VALF, kInfinity), IsOkAndHolds(5.0f));
  FSDP_ASSIGN_OR_RETURN(const GradClip clip, model.ClipGradNormAsync(HUGE_VALF));
  EXPECT_THAT(clip.Norm(), IsOkAndHolds(std::sqrt(squares)));
  return absl::OkStatus();
}

TEST(ClipGradNormHybridTest, ReplicasCountOnce) {
  for (const auto strategy : {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    for (const int shard_group_size : {2, 3}) {
      ASSERT_OK(RunRanks(6, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        FsdpOptions options = BlockOptions();
        options.sharding_strategy = strategy;
        options.shard_group_size = shard_group_size;
        FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
        SetGradients(made, RampOf);
        return ExpectNormsOfRamps(*made.model, made.model->parameters());
      }));
    }
  }
}

TEST(ClipGradNormHybridTest, ReplicasOfAMeshCountOnce) {
  for (const int replicas : {2, 3, 6}) {
    ASSERT_OK(RunFullyShard(
        6, {},
        [](TestFullyShard& test) -> absl::Status {
          FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());  // makes the gradients' memory
          FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
          SetGradients(parameters, RampOf);
          return ExpectNormsOfRamps(*test.root, parameters);
        },
        replicas));
  }
}

// torch.nn.utils.clip_grad_norm_ multiplies every gradient, whatever the norm is: by min(1, max_norm / (norm + 1e-6)),
// in which NaN is not below 1.
float TorchCoefficient(float norm, float max_norm) {
  const float coefficient = max_norm / (norm + 1e-6f);
  return coefficient > 1 ? 1 : coefficient;
}

bool Same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

struct NormCase {
  const char* name;
  float element_14;  // of every parameter; all others are 0.5
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr NormCase kNormCases[] = {{"finite", -2.0f}, {"NaN", kNan}, {"infinite", HUGE_VALF}, {"overflow", 1e30f}};
constexpr float kMaxNorms[] = {0.0f, 0.25f, 1e9f, HUGE_VALF};

std::vector<FsdpOptions> StrategiesOfTwoRanks() {
  std::vector<FsdpOptions> all = Strategies();
  FsdpOptions hybrid = BlockOptions();
  hybrid.sharding_strategy = ShardingStrategy::kHybridShard;
  hybrid.shard_group_size = 1;
  all.push_back(hybrid);
  return all;
}

TEST(ClipGradNormTableTest, GradientsAreMultipliedAsByPyTorchForEveryNormAndLimit) {
  for (const FsdpOptions& options : StrategiesOfTwoRanks()) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
      for (const NormCase& of : kNormCases) {
        for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
          for (const float max_norm : kMaxNorms) {
            SCOPED_TRACE(testing::Message() << of.name << ", p " << p << ", max_norm " << max_norm);
            const auto value = [&](int64_t i) { return i == 14 ? of.element_14 : 0.5f; };
            SetGradients(made, value);
            FSDP_ASSIGN_OR_RETURN(const float norm, made.model->ClipGradNorm(max_norm, p));
            EXPECT_TRUE(!std::isnan(of.element_14) || std::isnan(norm)) << norm;
            EXPECT_TRUE(!std::isinf(of.element_14) || norm == HUGE_VALF) << norm;
            const float coefficient = TorchCoefficient(norm, max_norm);
            int wrong = 0;
            for (const ShardedParameter* parameter : made.model->parameters()) {
              for (int64_t i = 0; i < parameter->interval.size(); ++i) {
                const float wanted = value(parameter->interval.begin + i) * coefficient;
                wrong += Same(parameter->grad.data_as<float>()[i], wanted) ? 0 : 1;
              }
            }
            EXPECT_EQ(wrong, 0) << "elements, of norm " << norm;
          }
        }
      }
      return absl::OkStatus();
    }));
  }
}

// The parameters after one step of AdamW by gradients of this norm, which are clipped before or in the step.
absl::StatusOr<WholeTensors> StepBy(const FsdpOptions& options, const NormCase& of, float max_norm, bool defer) {
  WholeTensors stepped;
  FSDP_RETURN_IF_ERROR(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    SetGradients(made, [&](int64_t i) { return i == 14 ? of.element_14 : 0.5f; });
    if (defer) {
      FSDP_ASSIGN_OR_RETURN(const GradClip clip, made.model->ClipGradNormAsync(max_norm));
      made.optimizer->set_grad_factor(clip.coefficient());
    } else {
      FSDP_RETURN_IF_ERROR(made.model->ClipGradNorm(max_norm).status());
    }
    FSDP_RETURN_IF_ERROR(made.optimizer->Step(made.model->stream()));
    FSDP_RETURN_IF_ERROR(made.model->stream().Synchronize());
    stepped.AddParameters(made.model->parameters());
    return absl::OkStatus();
  }));
  return stepped;
}

int Differences(const WholeTensors& a, const WholeTensors& b) {
  int differences = 0;
  for (const auto& [name, values] : a.tensors()) {
    const std::vector<float>& others = b.tensors().at(name);
    for (size_t i = 0; i < values.size(); ++i) differences += Same(values[i], others[i]) ? 0 : 1;
  }
  return differences;
}

TEST(ClipGradNormTableTest, BothFormsGiveTheSameStepForEveryNormAndLimit) {
  for (const FsdpOptions& options : StrategiesOfTwoRanks()) {
    for (const NormCase& of : kNormCases) {
      for (const float max_norm : kMaxNorms) {
        SCOPED_TRACE(testing::Message() << of.name << ", max_norm " << max_norm);
        ASSERT_OK_AND_ASSIGN(const WholeTensors deferred, StepBy(options, of, max_norm, /*defer=*/true));
        ASSERT_OK_AND_ASSIGN(const WholeTensors clipped, StepBy(options, of, max_norm, /*defer=*/false));
        ASSERT_FALSE(clipped.empty());
        EXPECT_EQ(Differences(deferred, clipped), 0) << "elements";
      }
    }
  }
}

// A step by the coefficient is a step after clipping, in every bit.
TEST(DeferClipGradNormTest, TheStepHasTheBitsOfClippingBefore) {
  std::vector<FsdpOptions> all = Strategies();
  all[1].mixed_precision = {.param_dtype = DType::kBFloat16, .keep_low_precision_grads = true};
  for (const FsdpOptions& options : all) {
    for (const float max_norm : {0.0f, 0.05f, 100.0f}) {
      WholeTensors deferred, clipped;
      for (const bool defer : {true, false}) {
        ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
          FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
          for (int step = 0; step < 2; ++step) {
            FSDP_RETURN_IF_ERROR(made.ComputeGradients(step).status());
            if (defer) {
              FSDP_ASSIGN_OR_RETURN(const GradClip clip, made.model->ClipGradNormAsync(max_norm));
              EXPECT_EQ(clip.coefficient().defined(), !options.cpu_offload.offload_params);
              made.optimizer->set_grad_factor(clip.coefficient());
            } else {
              FSDP_RETURN_IF_ERROR(made.model->ClipGradNorm(max_norm).status());
            }
            FSDP_RETURN_IF_ERROR(made.optimizer->Step(made.model->stream()));
            made.optimizer->ZeroGrad();
          }
          FSDP_RETURN_IF_ERROR(made.model->stream().Synchronize());
          (defer ? deferred : clipped).AddParameters(made.model->parameters());
          return absl::OkStatus();
        }));
      }
      EXPECT_TRUE(deferred == clipped) << max_norm;
    }
  }
}

TEST(DeferClipGradNormTest, TheNormIsClipGradNorms) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, MixedOptions()));
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());
    FSDP_ASSIGN_OR_RETURN(const GradClip clip, made.model->ClipGradNormAsync(1e-3f));
    FSDP_ASSIGN_OR_RETURN(const float norm, clip.Norm());
    EXPECT_GT(norm, 0);
    EXPECT_THAT(made.model->ClipGradNorm(HUGE_VALF), IsOkAndHolds(norm)) << "gradients were scaled";
    return absl::OkStatus();
  }));
}

TEST(ClipGradNormErrorTest, NormTypesAndLimitsThatAreNoneAreRefused) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    EXPECT_THAT(made.model->ClipGradNorm(1, 0),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("norm_type is 0: expected above 0")));
    EXPECT_THAT(made.model->ClipGradNorm(1, NAN),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("norm_type is nan: expected above 0")));
    for (const float max_norm : {-1.0f, NAN}) {
      const auto refused =
          StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected at least 0, or infinity to clip nothing"));
      EXPECT_THAT(made.model->ClipGradNorm(max_norm), refused);
      EXPECT_THAT(made.model->ClipGradNormAsync(max_norm).status(), refused);
    }
    return absl::OkStatus();
  }));
}

TEST(PowerSumTest, LetsNanThroughAndTakesAnyFloat) {
  const std::shared_ptr<Device> device = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device, DType::kBFloat16, {2000}));
  for (int i = 0; i < 2000; ++i) t.data_as<uint16_t>()[i] = 0xBF80;  // -1
  EXPECT_THAT(PowerSum(t, 1), IsOkAndHolds(2000.0));
  EXPECT_THAT(PowerSum(t, kInfinity), IsOkAndHolds(1.0));
  t.data_as<uint16_t>()[1500] = 0x7FC0;  // NaN
  EXPECT_TRUE(std::isnan(*PowerSum(t, 1)));
  EXPECT_TRUE(std::isnan(*PowerSum(t, kInfinity)));
}

}  // namespace
}  // namespace fsdp
