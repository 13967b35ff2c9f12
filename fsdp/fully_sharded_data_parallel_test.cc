// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/fully_sharded_data_parallel.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/nn/module.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(FullyShardedDataParallelTest, ParametersAreUnboundOutsideOfCompute) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(made.Train(0));
    for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
      EXPECT_THAT(parameter->Data(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(parameter->fqn)));
      EXPECT_FALSE(parameter->grad.defined()) << name;
    }
    return absl::OkStatus();
  }));
}

TEST(FullyShardedDataParallelTest, ForwardOfAUnitAloneIsAnErrorAndNotAWrongNumber) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    Tape tape = made.model->NewTape();
    FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Empty(DType::kFloat32, {1, 3, 15}));
    for (const auto& [name, module] : made.model->module().NamedModules()) {
      if (name != "transformer.h.0") continue;
      EXPECT_THAT(module->Forward(x, tape).status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("transformer.h.0")));
    }
    return absl::OkStatus();
  }));
}

// GPT-2's embedding is also its head.
TEST(FullyShardedDataParallelTest, AParameterSharedAcrossUnitsStaysOneAndTrainsToTheSameBits) {
  for (const ShardingStrategy strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    ASSERT_OK(RunRanks(3, [strategy](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FsdpOptions options = BlockOptions();
      options.sharding_strategy = strategy;
      FSDP_ASSIGN_OR_RETURN(TestModel together, MakeTestModel(group, options));
      options.auto_wrap_policy = NameWrapPolicy({"transformer.h.*", "transformer.wte", "lm_head"});
      FSDP_ASSIGN_OR_RETURN(TestModel apart, MakeTestModel(group, options));
      EXPECT_THAT(apart.model->warnings(), testing::Contains(HasSubstr("\"transformer.wte.weight\" is shared across")));
      for (int step = 0; step < 3; ++step) {
        FSDP_RETURN_IF_ERROR(together.Train(step));
        FSDP_RETURN_IF_ERROR(apart.Train(step));
      }
      FSDP_ASSIGN_OR_RETURN(const StateDict expected, together.AllState());
      FSDP_ASSIGN_OR_RETURN(const StateDict state, apart.AllState());
      EXPECT_EQ(state.aliases, expected.aliases);
      EXPECT_EQ(state.entries().size(), expected.entries().size());
      for (const auto& [key, value] : expected.entries()) {
        const auto* tensor = std::get_if<ShardedTensor>(&value);
        if (tensor == nullptr) continue;
        const ShardedTensor* found = state.FindTensor(key);
        if (found == nullptr) return absl::NotFoundError(key.fqn);
        const Tensor &want = tensor->shards.at(0).data, &got = found->shards.at(0).data;
        EXPECT_EQ(std::memcmp(want.data(), got.data(), want.nbytes()), 0) << key.fqn;
      }
      return absl::OkStatus();
    }));
  }
}

TEST(FullyShardedDataParallelTest, RanksThatWrapDifferentlyGetAnError) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    if (group->rank() == 1) options.auto_wrap_policy = WrapPolicy();
    return MakeTestModel(group, options).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ranks wrap different models")));
}

// The sum of squares of all gradients of a rank, and their slices, after `run`.
std::vector<float> Gradients(const FullyShardedDataParallel& model) {
  std::vector<float> all;
  for (const ShardedParameter* p : model.parameters()) {
    all.insert(all.end(), p->grad.data_as<float>(), p->grad.data_as<float>() + p->grad.numel());
  }
  return all;
}

TEST(NoSyncGuardTest, TwoBackwardsAccumulateToTheSumOfTheirGradients) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel together, MakeTestModel(group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(TestModel apart, MakeTestModel(group, BlockOptions()));
    {
      NoSyncGuard guard(*together.model);
      FSDP_RETURN_IF_ERROR(together.ComputeGradients(0).status());
      for (const ShardedParameter* p : together.model->parameters()) EXPECT_FALSE(p->has_grad) << p->fqn;
    }
    EXPECT_TRUE(together.model->requires_gradient_sync());
    FSDP_RETURN_IF_ERROR(together.ComputeGradients(1).status());
    // Without the guard the sharded gradients add up.
    FSDP_RETURN_IF_ERROR(apart.ComputeGradients(0).status());
    FSDP_RETURN_IF_ERROR(apart.ComputeGradients(1).status());
    const std::vector<float> a = Gradients(*together.model), b = Gradients(*apart.model);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6) << i;
    return absl::OkStatus();
  }));
}

TEST(NoSyncGuardTest, AccumulatedGradientsDoNotLeakIntoTheNextStep) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel accumulated, MakeTestModel(group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(TestModel plain, MakeTestModel(group, BlockOptions()));
    {
      NoSyncGuard guard(*accumulated.model);
      FSDP_RETURN_IF_ERROR(accumulated.ComputeGradients(0).status());
    }
    FSDP_RETURN_IF_ERROR(accumulated.ComputeGradients(1).status());
    accumulated.optimizer->ZeroGrad();
    FSDP_RETURN_IF_ERROR(accumulated.ComputeGradients(2).status());
    FSDP_RETURN_IF_ERROR(plain.ComputeGradients(2).status());
    EXPECT_EQ(Gradients(*accumulated.model), Gradients(*plain.model));
    return absl::OkStatus();
  }));
}

TEST(FsdpClipGradNormTest, ReturnsTheGlobalNormAndScalesToTheLimit) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());
    FSDP_ASSIGN_OR_RETURN(const float unclipped, made.model->ClipGradNorm(HUGE_VALF));
    FSDP_ASSIGN_OR_RETURN(const float before, made.model->ClipGradNorm(unclipped / 4));
    EXPECT_EQ(before, unclipped);
    FSDP_ASSIGN_OR_RETURN(const float after, made.model->ClipGradNorm(HUGE_VALF));
    EXPECT_NEAR(after, unclipped / 4, 1e-5 * unclipped);
    return absl::OkStatus();
  }));
}

TEST(FsdpClipGradNormTest, IsTheSameAtEveryWorldSizeForEqualRows) {
  // NO_SHARD holds whole gradients on every rank; the norm must not count them twice.
  float norms[2] = {0, 0};
  for (const bool sharded : {false, true}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FsdpOptions options = BlockOptions();
      options.sharding_strategy = sharded ? ShardingStrategy::kFullShard : ShardingStrategy::kNoShard;
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());
      FSDP_ASSIGN_OR_RETURN(const float norm, made.model->ClipGradNorm(HUGE_VALF));
      if (group->rank() == 0) norms[sharded] = norm;
      return absl::OkStatus();
    }));
  }
  EXPECT_NEAR(norms[0], norms[1], 1e-6 * norms[0]);
}

TEST(FsdpMixedPrecisionTest, KeepsFloat32ShardsAndLearns) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    options.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    FSDP_ASSIGN_OR_RETURN(const float first, made.ComputeGradients(0));
    made.optimizer->ZeroGrad();
    for (int step = 0; step < 30; ++step) FSDP_RETURN_IF_ERROR(made.Train(0));
    FSDP_ASSIGN_OR_RETURN(const float last, made.ComputeGradients(0));
    EXPECT_LT(last, 0.7f * first);
    for (const ShardedParameter* p : made.model->parameters()) EXPECT_EQ(p->data.dtype(), DType::kFloat32);
    return absl::OkStatus();
  }));
}

TEST(FsdpMixedPrecisionTest, LossIsCloseToFloat32) {
  float losses[2] = {0, 0};
  for (const bool mixed : {false, true}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FsdpOptions options = BlockOptions();
      if (mixed) options.mixed_precision.param_dtype = DType::kBFloat16;
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
      for (int step = 0; step < 5; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
      FSDP_ASSIGN_OR_RETURN(const float loss, made.ComputeGradients(5));
      if (group->rank() == 0) losses[mixed] = loss;
      return absl::OkStatus();
    }));
  }
  EXPECT_NEAR(losses[0], losses[1], 0.01f * losses[0]);
}

TEST(FullyShardedDataParallelTest, AnEvaluationLeavesNoParameterBound) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    Tape tape = made.model->NewTape(/*training=*/false);
    FSDP_ASSIGN_OR_RETURN(const Tensor tokens, Tensor::Empty(made.model->device(), DType::kInt32, {1, 3}));
    for (int i = 0; i < 3; ++i) tokens.data_as<int32_t>()[i] = i;
    FSDP_RETURN_IF_ERROR(made.model->Forward(tokens, tape).status());
    FSDP_RETURN_IF_ERROR(made.model->stream().Synchronize());
    for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
      EXPECT_FALSE(parameter->data.defined()) << name;
    }
    return made.Train(0);
  }));
}

TEST(FullyShardedDataParallelTest, ATokenBeyondTheVocabularyEndsTheStepWithAnErrorOnEveryRank) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    Tape tape = made.model->NewTape(/*training=*/false);
    FSDP_ASSIGN_OR_RETURN(const Tensor tokens, Tensor::Empty(made.model->device(), DType::kInt32, {1, 2}));
    tokens.data_as<int32_t>()[0] = 0;
    tokens.data_as<int32_t>()[1] = group->rank() == 1 ? 29 : 0;
    FSDP_RETURN_IF_ERROR(made.model->Forward(tokens, tape).status());
    return made.model->stream().Synchronize();
  });
  EXPECT_THAT(status.message(), HasSubstr("29"));
}

}  // namespace
}  // namespace fsdp
