// SPDX-License-Identifier: Apache-2.0
//
// Sharded modules of LibTorch on a GPU, compared with plain LibTorch on the same GPU. If every rank has all rows, the
// results must be equal: see sharded_module_test.cc. Needs a GPU and a LibTorch that supports it.
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/libtorch/gpu_ranks_testutil.h"
#include "fsdp/libtorch/mixed_net_testutil.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

// The bound of sharded_module_test.cc, for sums taken in another order.
constexpr double kSplitBound = 1e-5;

void ExpectDifference(const std::string& what, const TorchValues& wanted, const TorchValues& values, double bound) {
  const double difference = LargestDifference(wanted, values);
  if (difference != 0) printf("  %s differs by %g\n", what.c_str(), difference);
  EXPECT_LE(difference, bound) << what;
}

void ExpectSameBits(const std::string& model, int ranks, const TestSharding& sharding, const TestTraining& training) {
  const TorchValues plain = TrainPlain(model, training, TestGpu());
  const absl::StatusOr<TrainedModel> trained = TrainOnThreads(model, ranks, sharding, training, RunGpuRanks);
  ASSERT_OK(trained.status());
  ExpectDifference(model + " on " + std::to_string(ranks), plain, trained->values, 0);
  EXPECT_EQ(trained->bound_after, 0);
}

double DecayOf(const std::string& model) { return model == "odd_net" ? 0 : 0.1; }

TestSharding Fsdp1For(const std::string& model) { return {.fsdp1 = {.use_orig_params = model == "odd_net"}}; }

class EveryModelGpuTest : public GpuRanksTest, public ::testing::WithParamInterface<std::string> {};

// The reference of the other tests has the same bits each time, and agrees with the host.
TEST_P(EveryModelGpuTest, PlainLibTorchRepeatsItsBits) {
  const TestTraining training{.weight_decay = 0, .adamw = false};
  const TorchValues first = TrainPlain(GetParam(), training, TestGpu());
  ExpectDifference("a second run", first, TrainPlain(GetParam(), training, TestGpu()), 0);
  ExpectDifference("the host", first, TrainPlain(GetParam(), training), kSplitBound);
}

TEST_P(EveryModelGpuTest, TrainsAsPlainLibTorchUnderFsdp1) {
  for (const int ranks : {1, 2, 4}) {
    ExpectSameBits(GetParam(), ranks, Fsdp1For(GetParam()), {.weight_decay = DecayOf(GetParam())});
  }
}

TEST_P(EveryModelGpuTest, TrainsAsPlainLibTorchUnderFsdp2) {
  for (const int ranks : {1, 2, 4}) ExpectSameBits(GetParam(), ranks, {.use_fsdp2 = true}, {});
}

TEST_P(EveryModelGpuTest, AddsGradientsOfThreeBackwardsWithAndWithoutCommunication) {
  const std::string& model = GetParam();
  const TestTraining training{.steps = 2, .backwards = 3, .weight_decay = 0, .adamw = false};
  const TorchValues plain = TrainPlain(model, training, TestGpu());
  for (const bool no_sync : {false, true}) {
    TestTraining sharded = training;
    sharded.no_sync = no_sync;
    for (const TestSharding& sharding : {Fsdp1For(model), TestSharding{.use_fsdp2 = true}}) {
      const auto trained = TrainOnThreads(model, 2, sharding, sharded, RunGpuRanks);
      ASSERT_OK(trained.status());
      ExpectDifference(no_sync ? "no_sync" : "sync", plain, trained->values, kSplitBound);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryModelGpuTest, ::testing::ValuesIn(TestModelNames()),
                         [](const auto& info) { return info.param; });

class ShardedModuleGpuTest : public GpuRanksTest {};

TEST_F(ShardedModuleGpuTest, EveryStrategyTrainsAsPlainLibTorch) {
  for (const ShardingStrategy strategy : {ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    SCOPED_TRACE(ShardingStrategyName(strategy));
    ExpectSameBits("tied_transformer", 2, {.fsdp1 = {.sharding_strategy = strategy}}, {});
  }
  for (const ShardingStrategy strategy : {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    SCOPED_TRACE(ShardingStrategyName(strategy));
    ExpectSameBits("tied_transformer", 4, {.fsdp1 = {.sharding_strategy = strategy, .shard_group_size = 2}}, {});
  }
  ExpectSameBits("tied_transformer", 4, {.use_fsdp2 = true, .mesh = {2, 2}}, {});
  for (const ReshardAfterForward& reshard : {ReshardAfterForward(false), ReshardAfterForward(2)}) {
    ExpectSameBits("tied_transformer", 4, {.use_fsdp2 = true, .fsdp2 = {.reshard_after_forward = reshard}}, {});
  }
}

TEST_F(ShardedModuleGpuTest, EveryPrefetchTrainsAsPlainLibTorch) {
  for (const BackwardPrefetch prefetch :
       {BackwardPrefetch::kBackwardPre, BackwardPrefetch::kBackwardPost, BackwardPrefetch::kNone}) {
    SCOPED_TRACE(BackwardPrefetchName(prefetch));
    const FsdpOptions options{.backward_prefetch = prefetch,
                              .forward_prefetch = true,
                              .limit_all_gathers = prefetch != BackwardPrefetch::kNone};
    ExpectSameBits("transformer_encoder", 2, {.fsdp1 = options}, {});
  }
}

TEST_F(ShardedModuleGpuTest, OffloadedParametersTrainAsPlainLibTorch) {
  // torch::optim on the host rounds differently: AdamW's update is of size lr if the gradient is not 0.
  const TestTraining training{.weight_decay = 0, .adamw = false};
  const TorchValues plain = TrainPlain("tied_transformer", training, TestGpu());
  for (const TestSharding& sharding :
       {TestSharding{.fsdp1 = {.cpu_offload = {.offload_params = true}}},
        TestSharding{.use_fsdp2 = true, .fsdp2 = {.offload_policy = CpuOffloadPolicy()}}}) {
    const auto trained = TrainOnThreads("tied_transformer", 2, sharding, training, RunGpuRanks);
    ASSERT_OK(trained.status());
    ExpectDifference("offload", plain, trained->values, kSplitBound);
  }
}

TEST_F(ShardedModuleGpuTest, RanksWithPartsOfTheRowsTrainAsOneWithAll) {
  const TestTraining training{.weight_decay = 0, .adamw = false};
  TestTraining split = training;
  split.split_rows = true;
  for (const char* model : {"mlp", "tied_transformer", "lstm", "script"}) {
    SCOPED_TRACE(model);
    const TorchValues plain = TrainPlain(model, training, TestGpu());
    for (const bool fsdp2 : {false, true}) {
      const auto trained = TrainOnThreads(model, 2, {.use_fsdp2 = fsdp2}, split, RunGpuRanks);
      ASSERT_OK(trained.status());
      ExpectDifference(model, plain, trained->values, kSplitBound);
    }
  }
}

TEST_F(ShardedModuleGpuTest, ALossOfTwoForwardsHasThePlainGradients) {
  const TestTraining training{.steps = 3, .forwards = 2, .weight_decay = 0, .adamw = false};
  for (const char* model : {"tied_transformer", "odd_net"}) {
    TestSharding sharding = Fsdp1For(model);
    ExpectSameBits(model, 2, sharding, training);
    sharding.use_fsdp2 = true;
    ExpectSameBits(model, 2, sharding, training);
  }
}

TEST_F(ShardedModuleGpuTest, TakesTheMemoryThatWasPlannedToTheByte) {
  const std::vector<std::pair<int, TestSharding>> cases = {
      {1, {}},
      {2, {.fsdp1 = {.sharding_strategy = ShardingStrategy::kShardGradOp}}},
      {2, {.fsdp1 = {.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32}}}},
      {3, {.use_fsdp2 = true}},
  };
  for (const auto& [ranks, sharding] : cases) {
    ASSERT_OK(RunGpuRanks(ranks, [&sharding = sharding](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const PlannedMemory memory, TakePlannedMemory(group, sharding));
      EXPECT_EQ(memory.taken, memory.planned);
      EXPECT_GT(memory.planned, 0);
      return absl::OkStatus();
    }));
  }
}

TEST_F(ShardedModuleGpuTest, BindsTheRootAndOneUnitAtATime) {
  const auto trained = TrainOnThreads("tied_transformer", 2, {}, {}, RunGpuRanks);
  ASSERT_OK(trained.status());
  const int64_t root = 11 * 12 * 4, block = (trained->total_bytes - root) / 3;
  EXPECT_EQ(trained->peak_bound_bytes, root + block);
  EXPECT_EQ(trained->plan.slots.unsharded, 2);
}

TEST_F(ShardedModuleGpuTest, OurOptimizersTrainIt) {
  for (const bool adamw : {false, true}) {
    const TestTraining training{.weight_decay = 0, .adamw = adamw};
    // AdamW moves an element by up to lr if its gradient is 0 except for rounding, such as an attention's key bias.
    const char* const name = adamw ? "mlp" : "tied_transformer";
    const TorchValues plain = TrainPlain(name, training, TestGpu());
    ASSERT_OK(RunGpuRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      const TestModel model = MakeTestModel(name, TestGpu());
      FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {}));
      std::unique_ptr<Optimizer> optimizer;
      if (adamw) {
        optimizer = std::make_unique<AdamW>(sharded->parameters(), AdamWOptions{.lr = training.lr, .weight_decay = 0});
      } else {
        optimizer = std::make_unique<Sgd>(sharded->parameters(), SgdOptions{.lr = training.lr, .momentum = 0.9});
      }
      FSDP_RETURN_IF_ERROR(Caught([&]() -> absl::Status {
        for (int step = 0; step < training.steps; ++step) {
          sharded->Forward(model.forward, model.input(step)).square().mean().backward();
          FSDP_RETURN_IF_ERROR(optimizer->Step(sharded->stream()));
          optimizer->ZeroGrad();
        }
        return absl::OkStatus();
      }));
      FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*sharded));
      ExpectDifference(adamw ? "AdamW" : "Sgd", plain, values, kSplitBound);
      return absl::OkStatus();
    }));
  }
}

TEST_F(ShardedModuleGpuTest, ClippingIsThatOfLibTorch) {
  const TestModel plain = MakeTestModel("mlp", TestGpu());
  plain.forward(plain.input(0)).square().sum().backward();
  const double norm = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.5);
  const auto of_plain = [&](const char* name) { return plain.module->named_parameters()[name].grad().cpu(); };
  for (const bool fsdp2 : {false, true}) {
    ASSERT_OK(RunGpuRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      const TestModel model = MakeTestModel("mlp", TestGpu());
      FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.use_fsdp2 = fsdp2}));
      const std::vector<at::Tensor>& local = sharded->LocalParameters();
      FSDP_RETURN_IF_ERROR(Caught([&] {
        sharded->Forward(model.forward, model.input(0)).square().sum().backward();
        return absl::OkStatus();
      }));
      FSDP_ASSIGN_OR_RETURN(const float ours, sharded->fsdp().ClipGradNorm(0.5f));
      EXPECT_NEAR(ours, norm, 1e-5 * norm);
      // Each rank's tensors show the clipped gradients: their squares add to the bound's.
      const std::vector<at::Tensor>& clipped = sharded->LocalParameters();
      EXPECT_EQ(&clipped, &local);
      return Caught([&] {
        double squares = 0;
        for (const at::Tensor& tensor : clipped) {
          if (tensor.grad().defined()) squares += tensor.grad().to(at::kDouble).square().sum().item<double>();
        }
        EXPECT_GT(squares, 0);
        EXPECT_LE(squares, 0.25 * (1 + 1e-5));
        return absl::OkStatus();
      });
    }));
  }
  EXPECT_GT(of_plain("layers.0.weight").abs().max().item<double>(), 0);
}

// Blocks in bfloat16, the root in float32; gradients are reduced in float32.
absl::StatusOr<std::unique_ptr<ShardedModule>> ShardBlocks(MixedNetImpl& net, std::shared_ptr<ProcessGroup> group,
                                                           const FullyShardOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  FSDP_ASSIGN_OR_RETURN(auto mirror, MirrorModule::Create(TreeOf(net)));
  for (const char* block : {"blocks.0", "blocks.1"}) {
    FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*mirror->Find(block)), mesh, options).status());
  }
  FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*mirror), mesh, FullyShardOptions()).status());
  return ShardedModule::FromFullyShard(std::move(mirror));
}

TEST_F(ShardedModuleGpuTest, UnitsInBFloat16CastAtTheirBordersAndRecompute) {
  FullyShardOptions options;
  options.mp_policy.param_dtype = DType::kBFloat16;
  options.mp_policy.reduce_dtype = DType::kFloat32;
  const auto shard = [&](MixedNetImpl& net, std::shared_ptr<ProcessGroup> group) {
    return ShardBlocks(net, group, options);
  };
  const auto train = [&](bool calls_units) { return TrainMixedSharded(shard, calls_units, RunGpuRanks); };
  const auto at_operators = train(false);
  ASSERT_OK(at_operators.status());
  ExpectDifference(
      "casts at operators",
      TrainMixedPlain([](MixedBlockImpl& block, const at::Tensor& x) { return block.Compute(x, x.to(at::kBFloat16)); },
                      TestGpu()),
      *at_operators, 0);
  options.mp_policy.output_dtype = DType::kFloat32;
  const TorchValues wanted = TrainMixedPlain(
      [](MixedBlockImpl& block, const at::Tensor& x) {
        const at::Tensor low = x.to(at::kBFloat16);
        return block.Compute(low, low).to(at::kFloat);
      },
      TestGpu());
  for (const bool recomputes : {false, true}) {
    options.activation_checkpointing = recomputes;
    const auto called = train(true);
    ASSERT_OK(called.status());
    ExpectDifference(recomputes ? "called and recomputed" : "called", wanted, *called, 0);
  }
}

TEST_F(ShardedModuleGpuTest, TensorsOfTheHostAreRefusedByName) {
  ASSERT_OK(RunGpuRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel on_host = MakeTestModel("mlp"), model = MakeTestModel("mlp", TestGpu());
    EXPECT_THAT(ShardTestModel(on_host, group, {}).status().message(),
                HasSubstr("is on cpu, but the process group on cuda:0: move the module there before Shard"));
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {}));
    EXPECT_THAT(ErrorOf([&] { model.forward(model.input(0)); }), HasSubstr("is sharded and its unit"));
    EXPECT_THAT(ErrorOf([&] { sharded->Forward(model.forward, on_host.input(0)); }), HasSubstr("same device"));
    return Caught([&] {  // and it continues
      sharded->Forward(model.forward, model.input(0)).square().mean().backward();
      return absl::OkStatus();
    });
  }));
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::RunGpuTests(argc, argv); }
