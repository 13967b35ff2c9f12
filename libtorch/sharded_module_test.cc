// SPDX-License-Identifier: Apache-2.0
//
// Training of sharded modules compared with plain LibTorch in one process. If every rank has all rows, the mean over
// 2^n ranks equals each rank's value in every bit, and torch::optim updates each element independently, so nothing may
// differ. If each rank has a part of the rows, sums are taken in another order: see kSplitBound.
#include "fsdp/libtorch/sharded_module.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <limits>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// SGD moves a weight by lr * g. g is a mean over n < 2^10 values of size at most 2^4, so its error is at most n * 2^-24
// * 2^4 in any order: 2^-10 for both runs in the worst case and n^(1/2) of it, 2^-15, in the usual one. Four steps with
// momentum 0.9 add at most 10 of it each, lr is 2^-7: 40 * 2^-15 * 2^-7 < 1e-5.
constexpr double kSplitBound = 1e-5;

void ExpectSameBits(const std::string& model, int ranks, const TestSharding& sharding, const TestTraining& training) {
  const TorchValues plain = TrainPlain(model, training);
  const absl::StatusOr<TrainedModel> trained = TrainOnThreads(model, ranks, sharding, training);
  ASSERT_OK(trained.status());
  EXPECT_EQ(LargestDifference(plain, trained->values), 0);
  EXPECT_EQ(trained->bound_after, 0);
}

// Regression: a training that ended in NaN passed every comparison.
TEST(TorchValuesTest, ADifferenceThatIsNaNIsTheLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TorchValues wanted = {{"a", at::ones({3})}, {"b", at::zeros({2})}},
                    spoiled = {{"a", at::full({3}, nan)}, {"b", at::ones({2})}};
  EXPECT_EQ(LargestDifference(wanted, spoiled), std::numeric_limits<double>::infinity());
  EXPECT_EQ(LargestDifference(spoiled, wanted), std::numeric_limits<double>::infinity());
  EXPECT_EQ(LargestDifference(wanted, {{"a", at::ones({3})}, {"b", at::full({2}, 0.5)}}), 0.5);
}

// FSDP1 gives the unused parameters of a unit that ran a gradient of zeros, which decays them, as PyTorch does.
double DecayOf(const std::string& model) { return model == "odd_net" ? 0 : 0.1; }

// FSDP1 wants all or none of a unit's parameters to be frozen, or use_orig_params.
TestSharding Fsdp1For(const std::string& model) { return {.fsdp1 = {.use_orig_params = model == "odd_net"}}; }

// After the training of TrainPlain's defaults, of a model that is sharded already.
absl::StatusOr<TorchValues> TrainedValues(ShardedModule& sharded, const TestModel& model) {
  at::set_num_threads(1);
  const TestTraining training;
  torch::optim::AdamW optimizer(sharded.LocalParameters(),
                                torch::optim::AdamWOptions(training.lr).weight_decay(training.weight_decay));
  FSDP_RETURN_IF_ERROR(Caught([&] {
    for (int step = 0; step < training.steps; ++step) {
      optimizer.zero_grad();
      sharded.Forward(model.forward, model.input(step)).square().mean().backward();
      optimizer.step();
    }
    return absl::OkStatus();
  }));
  return FullValues(sharded);
}

class EveryModelTest : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryModelTest, TrainsAsPlainLibTorchUnderFsdp1) {
  ExpectSameBits(GetParam(), 2, Fsdp1For(GetParam()), {.weight_decay = DecayOf(GetParam())});
}

TEST_P(EveryModelTest, TrainsAsPlainLibTorchUnderFsdp2) {
  // Here parameters that are not used have no gradient, as in plain LibTorch.
  ExpectSameBits(GetParam(), 2, {.use_fsdp2 = true}, {});
}

TEST_P(EveryModelTest, TrainsAsPlainLibTorchOnOneRank) {
  ExpectSameBits(GetParam(), 1, Fsdp1For(GetParam()), {.weight_decay = DecayOf(GetParam())});
}

TEST_P(EveryModelTest, AddsGradientsOfThreeBackwardsWithAndWithoutCommunication) {
  const std::string& model = GetParam();
  const TestTraining training{.steps = 2, .backwards = 3, .weight_decay = 0, .adamw = false};
  const TorchValues plain = TrainPlain(model, training);
  for (const bool no_sync : {false, true}) {
    TestTraining sharded = training;
    sharded.no_sync = no_sync;
    for (const TestSharding& sharding : {Fsdp1For(model), TestSharding{.use_fsdp2 = true}}) {
      const auto trained = TrainOnThreads(model, 2, sharding, sharded);
      ASSERT_OK(trained.status());
      EXPECT_LE(LargestDifference(plain, trained->values), kSplitBound) << no_sync << sharding.use_fsdp2;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryModelTest, ::testing::ValuesIn(TestModelNames()),
                         [](const auto& info) { return info.param; });

TEST(ShardedModuleTest, EveryStrategyOfFsdp1TrainsAsPlainLibTorch) {
  for (const ShardingStrategy strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    SCOPED_TRACE(ShardingStrategyName(strategy));
    ExpectSameBits("tied_transformer", 2, {.fsdp1 = {.sharding_strategy = strategy}}, {});
  }
}

TEST(ShardedModuleTest, HybridStrategiesOnFourRanksTrainAsPlainLibTorch) {
  for (const ShardingStrategy strategy : {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    SCOPED_TRACE(ShardingStrategyName(strategy));
    ExpectSameBits("tied_transformer", 4, {.fsdp1 = {.sharding_strategy = strategy, .shard_group_size = 2}}, {});
  }
  ExpectSameBits("tied_transformer", 4, {.use_fsdp2 = true, .mesh = {2, 2}}, {});
}

TEST(ShardedModuleTest, EveryPrefetchTrainsAsPlainLibTorch) {
  for (const BackwardPrefetch prefetch :
       {BackwardPrefetch::kBackwardPre, BackwardPrefetch::kBackwardPost, BackwardPrefetch::kNone}) {
    SCOPED_TRACE(BackwardPrefetchName(prefetch));
    const FsdpOptions options{.backward_prefetch = prefetch,
                              .forward_prefetch = true,
                              .limit_all_gathers = prefetch != BackwardPrefetch::kNone};
    ExpectSameBits("transformer_encoder", 2, {.fsdp1 = options}, {});
  }
}

TEST(ShardedModuleTest, EveryReshardingOfFsdp2TrainsAsPlainLibTorch) {
  for (const ReshardAfterForward& reshard :
       {ReshardAfterForward(true), ReshardAfterForward(false), ReshardAfterForward(2)}) {
    ExpectSameBits("tied_transformer", 4, {.use_fsdp2 = true, .fsdp2 = {.reshard_after_forward = reshard}}, {});
  }
}

// The program names the units that the last layer's forward and the first layer's backward gather ahead.
TEST(ShardedModuleTest, ExplicitPrefetchesOfFsdp2TrainAsPlainLibTorch) {
  const TorchValues plain = TrainPlain("transformer_encoder", {});
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("transformer_encoder");
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.use_fsdp2 = true}));
    std::vector<FsdpModule*> layers;
    for (const char* name : {"encoder.layers.0", "encoder.layers.1", "encoder.layers.2"}) {
      layers.push_back(sharded->fsdp_module(name));
    }
    FSDP_RETURN_IF_ERROR(layers[0]->set_modules_to_forward_prefetch({layers[1], layers[2]}));
    FSDP_RETURN_IF_ERROR(layers[2]->set_modules_to_backward_prefetch({layers[1], layers[0]}));
    FSDP_ASSIGN_OR_RETURN(const TorchValues values, TrainedValues(*sharded, model));
    EXPECT_EQ(LargestDifference(plain, values), 0);
    return absl::OkStatus();
  }));
}

// Masks are operands without a gradient, and evaluations between the steps must leave no state behind.
TEST(ShardedModuleTest, AnEncoderWithMasksAndEvaluationsBetweenStepsTrainsAsPlainLibTorch) {
  const at::Tensor mask = at::full({6, 6}, -std::numeric_limits<float>::infinity()).triu(1);
  const at::Tensor padding = at::arange(6).expand({4, 6}) >= at::tensor({6, 5, 6, 4}).unsqueeze(1);
  const auto train = [&](const TestModel& model, ShardedModule* sharded, std::vector<at::Tensor> parameters,
                         std::vector<at::Tensor>& evaluations) {
    const auto encoder = model.module->named_children()["encoder"];
    const auto forward = [&](const at::Tensor& x) {
      return encoder->as<torch::nn::TransformerEncoder>()->forward(x, mask, padding);
    };
    const auto run = [&](const at::Tensor& x) { return sharded ? sharded->Forward(forward, x) : forward(x); };
    torch::optim::AdamW optimizer(std::move(parameters), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const at::Tensor y = run(model.input(step));
      {
        at::NoGradGuard no_grad;
        model.module->eval();
        evaluations.push_back(run(model.input(50)));
        model.module->train();
      }
      y.square().mean().backward();
      optimizer.step();
    }
  };
  at::set_num_threads(1);
  const TestModel plain = MakeTestModel("transformer_encoder");
  std::vector<at::Tensor> wanted;
  train(plain, nullptr, plain.parameters(), wanted);
  EXPECT_FALSE(at::equal(wanted.front(), wanted.back()));
  for (const bool fsdp2 : {false, true}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      at::set_num_threads(1);
      const TestModel model = MakeTestModel("transformer_encoder");
      FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.use_fsdp2 = fsdp2}));
      std::vector<at::Tensor> evaluations;
      FSDP_RETURN_IF_ERROR(Caught([&] {
        train(model, sharded.get(), sharded->LocalParameters(), evaluations);
        return absl::OkStatus();
      }));
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(at::equal(evaluations[i], wanted[i])) << i;
      FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*sharded));
      for (const auto& item : plain.module->named_parameters()) {
        EXPECT_TRUE(at::equal(values.at(item.key()), item.value())) << item.key();
      }
      return absl::OkStatus();
    }));
  }
}

TEST(ShardedModuleTest, OffloadedParametersTrainAsPlainLibTorch) {
  ExpectSameBits("tied_transformer", 2, {.fsdp1 = {.cpu_offload = {.offload_params = true}}}, {});
  ExpectSameBits("tied_transformer", 2, {.use_fsdp2 = true, .fsdp2 = {.offload_policy = CpuOffloadPolicy()}}, {});
}

TEST(ShardedModuleTest, UnitsWithinUnitsTrainAsPlainLibTorch) {
  const std::vector<std::string> types = {"TransformerEncoderLayer", "MultiheadAttention", "Linear"};
  ExpectSameBits("transformer_encoder", 2, {.unit_types = types}, {});
  ExpectSameBits("transformer_encoder", 2, {.use_fsdp2 = true, .unit_types = types}, {});
}

TEST(ShardedModuleTest, ALossOfTwoForwardsHasThePlainGradients) {
  const TestTraining training{.steps = 3, .forwards = 2, .weight_decay = 0, .adamw = false};
  for (const char* model : {"tied_transformer", "odd_net"}) {
    SCOPED_TRACE(model);
    const TorchValues plain = TrainPlain(model, training);
    for (const bool fsdp2 : {false, true}) {
      TestSharding sharding = Fsdp1For(model);
      sharding.use_fsdp2 = fsdp2;
      const auto trained = TrainOnThreads(model, 2, sharding, training);
      ASSERT_OK(trained.status());
      EXPECT_EQ(LargestDifference(plain, trained->values), 0);
    }
  }
}

TEST(ShardedModuleTest, RanksWithPartsOfTheRowsTrainAsOneWithAll) {
  const TestTraining training{.weight_decay = 0, .adamw = false};
  TestTraining split = training;
  split.split_rows = true;
  for (const char* model : {"mlp", "tied_transformer", "lstm", "script"}) {
    SCOPED_TRACE(model);
    const TorchValues plain = TrainPlain(model, training);
    for (const bool fsdp2 : {false, true}) {
      const auto trained = TrainOnThreads(model, 2, {.use_fsdp2 = fsdp2}, split);
      ASSERT_OK(trained.status());
      EXPECT_LE(LargestDifference(plain, trained->values), kSplitBound);
    }
  }
  const auto thirds = TrainOnThreads("mlp", 3, {}, split);
  ASSERT_OK(thirds.status());
  EXPECT_LE(LargestDifference(TrainPlain("mlp", training), thirds->values), kSplitBound);
}

// The root and one block of three are bound, never two blocks, and no more than the plan's slots.
TEST(ShardedModuleTest, BindsTheRootAndOneUnitAtATime) {
  const auto trained = TrainOnThreads("tied_transformer", 2, {}, {});
  ASSERT_OK(trained.status());
  const int64_t root = 11 * 12 * 4, block = (trained->total_bytes - root) / 3;
  EXPECT_EQ(trained->peak_bound_bytes, root + block);
  // The slots equal the plan: the order of the step needed no more.
  EXPECT_EQ(trained->plan.slots.unsharded, 2);
  const auto zero2 =
      TrainOnThreads("tied_transformer", 2, {.fsdp1 = {.sharding_strategy = ShardingStrategy::kShardGradOp}}, {});
  ASSERT_OK(zero2.status());
  EXPECT_EQ(zero2->peak_bound_bytes, trained->total_bytes);
}

// The same for device memory: LibTorch's activations are not in the device's count.
TEST(ShardedModuleTest, TakesTheMemoryThatWasPlannedToTheByte) {
  const std::vector<std::pair<int, TestSharding>> cases = {
      {3, {}},
      {2, {.fsdp1 = {.sharding_strategy = ShardingStrategy::kShardGradOp}}},
      {4, {.fsdp1 = {.sharding_strategy = ShardingStrategy::kHybridShard, .shard_group_size = 2}}},
      {2, {.fsdp1 = {.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32}}}},
      {3, {.use_fsdp2 = true}},
      {4, {.use_fsdp2 = true, .mesh = {2, 2}}},
  };
  for (const auto& [ranks, sharding] : cases) {
    ASSERT_OK(RunRanks(ranks, [&sharding = sharding](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const PlannedMemory memory, TakePlannedMemory(group, sharding));
      EXPECT_EQ(memory.taken, memory.planned);
      EXPECT_GT(memory.planned, 0);
      return absl::OkStatus();
    }));
  }
}

TEST(ShardedModuleTest, OurOptimizersTrainIt) {
  const TestTraining training{.weight_decay = 0, .adamw = false};
  const TorchValues plain = TrainPlain("tied_transformer", training);
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("tied_transformer");
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {}));
    Sgd optimizer(sharded->parameters(), {.lr = training.lr, .momentum = 0.9});
    FSDP_RETURN_IF_ERROR(Caught([&]() -> absl::Status {
      for (int step = 0; step < training.steps; ++step) {
        sharded->Forward(model.forward, model.input(step)).square().mean().backward();
        FSDP_RETURN_IF_ERROR(optimizer.Step(sharded->stream()));
        optimizer.ZeroGrad();
      }
      return absl::OkStatus();
    }));
    FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*sharded));
    EXPECT_LE(LargestDifference(plain, values), kSplitBound);
    return absl::OkStatus();
  }));
}

// The memory of gradients holds anything before a backward: here the NaNs of another.
TEST(ShardedModuleTest, NothingThatABackwardLeftInMemoryIsInTheNextOne) {
  at::set_num_threads(1);
  for (const char* name : {"odd_net", "tied_transformer", "lstm", "mixture_of_experts"}) {
    for (const bool fsdp2 : {false, true}) {
      SCOPED_TRACE(std::string(name) + (fsdp2 ? " fsdp2" : ""));
      ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        std::vector<std::vector<float>> gradients[2];
        for (const bool nan_before : {false, true}) {
          const TestModel model = MakeTestModel(name);
          TestSharding sharding = Fsdp1For(name);
          sharding.use_fsdp2 = fsdp2;
          FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, sharding));
          const auto backward = [&](float scale) {
            return Caught([&] {
              sharded->Forward(model.forward, model.input(0)).square().mean().mul(scale).backward();
              return absl::OkStatus();
            });
          };
          if (nan_before) {
            FSDP_RETURN_IF_ERROR(backward(std::numeric_limits<float>::quiet_NaN()));
            for (ShardedParameter* parameter : sharded->parameters()) parameter->has_grad = false;
          }
          FSDP_RETURN_IF_ERROR(backward(1));
          FSDP_RETURN_IF_ERROR(sharded->stream().Synchronize());
          for (const ShardedParameter* parameter : sharded->parameters()) {
            if (!parameter->has_grad) continue;
            const float* grad = parameter->grad.data_as<float>();
            gradients[nan_before ? 1 : 0].emplace_back(grad, grad + parameter->grad.numel());
          }
        }
        EXPECT_FALSE(gradients[0].empty());
        EXPECT_EQ(gradients[0], gradients[1]);
        return absl::OkStatus();
      }));
    }
  }
}

TEST(ShardedModuleTest, ClippingIsThatOfLibTorch) {
  at::set_num_threads(1);
  const TestModel plain = MakeTestModel("mlp");
  plain.forward(plain.input(0)).square().sum().backward();
  const double norm = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.5);
  for (const bool fsdp2 : {false, true}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      const TestModel model = MakeTestModel("mlp");
      FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.use_fsdp2 = fsdp2}));
      FSDP_RETURN_IF_ERROR(Caught([&] {
        sharded->Forward(model.forward, model.input(0)).square().sum().backward();
        return absl::OkStatus();
      }));
      FSDP_ASSIGN_OR_RETURN(const float ours, sharded->fsdp().ClipGradNorm(0.5f));
      EXPECT_NEAR(ours, norm, 1e-5 * norm);
      FSDP_ASSIGN_OR_RETURN(const Tensor gradient, sharded->fsdp().GetFullGradient("layers.0.weight"));
      const at::Tensor wanted = plain.module->named_parameters()["layers.0.weight"].grad().contiguous();
      for (int64_t i = 0; i < wanted.numel(); ++i) {
        EXPECT_NEAR(gradient.data_as<float>()[i], wanted.data_ptr<float>()[i], 1e-6);
      }
      return absl::OkStatus();
    }));
  }
}

TEST(ShardedModuleTest, SummonedParametersAreWholeAndEditsStay) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("mlp"), plain = MakeTestModel("mlp");
    FsdpOptions options;
    options.mixed_precision.param_dtype = DType::kBFloat16;  // the original dtype is bound nevertheless
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.fsdp1 = options}));
    FSDP_ASSIGN_OR_RETURN(const auto guard, sharded->SummonFullParams());
    FSDP_RETURN_IF_ERROR(Caught([&] {
      const auto wanted = plain.module->named_parameters();
      for (const auto& item : model.module->named_parameters()) {
        EXPECT_TRUE(at::equal(item.value(), wanted[item.key()])) << item.key();
      }
      EXPECT_THAT(ErrorOf([&] { sharded->Forward(model.forward, model.input(0)); }),
                  ::testing::HasSubstr("SummonFullParamsGuard"));
      at::NoGradGuard no_grad;
      model.module->named_parameters()["layers.3.weight"].fill_(0.25);
      return absl::OkStatus();
    }));
    FSDP_RETURN_IF_ERROR(guard->Close());
    FSDP_ASSIGN_OR_RETURN(TorchValues values, FullValues(*sharded));
    EXPECT_TRUE(at::equal(values["layers.3.weight"], at::full({16, 33}, 0.25)));
    EXPECT_EQ(sharded->bound_bytes(), 0);
    EXPECT_EQ(model.module->named_parameters()["layers.0.weight"].scalar_type(), at::kBFloat16);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
