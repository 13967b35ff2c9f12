// SPDX-License-Identifier: Apache-2.0
//
// Training of sharded modules compared with plain LibTorch in one process. Where every rank has all rows, the mean over
// ranks is what each of them has, on 2^n ranks in every bit, and torch::optim updates each element by itself: then
// nothing may differ. Where each has a part of the rows, sums are taken in another order: see kSplitBound.
#include "fsdp/libtorch/sharded_module.h"

#include <torch/nn.h>

#include <array>

#include "absl/strings/match.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/test_models.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// SGD moves a weight by lr * g, where g, a mean over n < 2^10 values of size at most 2^4, has an error of at most
// n * 2^-24 * 2^4 in any order: 2^-10 for both runs in the worst case and n^(1/2) of it, 2^-15, in the usual one. Four
// steps with momentum 0.9 add at most 10 of it each, lr is 2^-7: 40 * 2^-15 * 2^-7 < 1e-5.
constexpr double kSplitBound = 1e-5;

void ExpectSameBits(const std::string& model, int ranks, const TestSharding& sharding, const TestTraining& training) {
  const TorchValues plain = TrainPlain(model, training);
  const absl::StatusOr<TrainedModel> trained = TrainOnThreads(model, ranks, sharding, training);
  ASSERT_OK(trained.status());
  EXPECT_EQ(LargestDifference(plain, trained->values), 0);
  EXPECT_EQ(trained->bound_after, 0);
}

// FSDP1 gives the unused parameters of a unit that ran a gradient of zeros, which decays them, as PyTorch does.
double DecayOf(const std::string& model) { return model == "odd_net" ? 0 : 0.1; }

// FSDP1 wants all or none of a unit's parameters to be frozen, or use_orig_params.
TestSharding Fsdp1For(const std::string& model) { return {.fsdp1 = {.use_orig_params = model == "odd_net"}}; }

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
    const auto trained = TrainOnThreads(model, 2, Fsdp1For(model), sharded);
    ASSERT_OK(trained.status());
    EXPECT_LE(LargestDifference(plain, trained->values), kSplitBound) << no_sync;
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

// Root and one block of three, and never another block beside it, nor with the plan's slots for it more.
TEST(ShardedModuleTest, BindsTheRootAndOneUnitAtATime) {
  const auto trained = TrainOnThreads("tied_transformer", 2, {}, {});
  ASSERT_OK(trained.status());
  const int64_t root = 11 * 12 * 4, block = (trained->total_bytes - root) / 3;
  EXPECT_EQ(trained->peak_bound_bytes, root + block);
  // The slots are those of the plan: the step's order made no more.
  EXPECT_EQ(trained->plan.slots.unsharded, 2);
  const auto zero2 =
      TrainOnThreads("tied_transformer", 2, {.fsdp1 = {.sharding_strategy = ShardingStrategy::kShardGradOp}}, {});
  ASSERT_OK(zero2.status());
  EXPECT_EQ(zero2->peak_bound_bytes, trained->total_bytes);
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

// bfloat16 reference: the same model with its weights rounded before each step, and its float32 gradients of bfloat16
// backwards, which is what mixed precision means on one rank.
TEST(ShardedModuleTest, MixedPrecisionHasTheBitsOfARoundedModel) {
  MixedPrecision precision;
  precision.param_dtype = DType::kBFloat16;
  precision.reduce_dtype = DType::kFloat32;
  const TestTraining training{.steps = 3, .weight_decay = 0, .adamw = false};
  const auto trained = TrainOnThreads("mlp", 2, {.fsdp1 = {.mixed_precision = precision}}, training);
  ASSERT_OK(trained.status());

  at::set_num_threads(1);
  const TestModel master = MakeTestModel("mlp"), low = MakeTestModel("mlp");
  const std::vector<at::Tensor> weights = master.parameters();
  torch::optim::SGD optimizer(weights, torch::optim::SGDOptions(training.lr).momentum(0.9));
  low.module->to(at::kBFloat16);
  const std::vector<at::Tensor> rounded = low.parameters();
  for (int step = 0; step < training.steps; ++step) {
    low.module->zero_grad();
    {
      at::NoGradGuard no_grad;
      for (size_t i = 0; i < weights.size(); ++i) rounded[i].copy_(weights[i]);
    }
    low.forward(low.input(step).to(at::kBFloat16)).to(at::kFloat).square().mean().backward();
    for (size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = rounded[i].grad().to(at::kFloat);
    optimizer.step();
  }
  TorchValues wanted;
  for (const auto& item : master.module->named_parameters()) wanted[item.key()] = item.value().detach();
  EXPECT_EQ(LargestDifference(wanted, trained->values), 0);
}

// A batch norm that stays in float32 as a unit of its own, and buffers in buffer_dtype.
TEST(ShardedModuleTest, EveryUnitHasItsOwnDType) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("conv_net");
    MixedPrecision precision;
    precision.param_dtype = DType::kBFloat16;
    precision.buffer_dtype = DType::kBFloat16;
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.fsdp1 = {.mixed_precision = precision}}));
    const auto parameters = model.module->named_parameters();
    EXPECT_EQ(parameters["conv1.weight"].scalar_type(), at::kBFloat16);
    EXPECT_EQ(parameters["norm.weight"].scalar_type(), at::kFloat);
    EXPECT_EQ(model.module->named_buffers()["norm.running_mean"].scalar_type(), at::kFloat);

    const TestModel tied = MakeTestModel("tied_transformer");
    FSDP_ASSIGN_OR_RETURN(const auto other, ShardTestModel(tied, group, {.fsdp1 = {.mixed_precision = precision}}));
    EXPECT_EQ(tied.module->named_buffers()["scale"].scalar_type(), at::kBFloat16);
    return Caught([&] {
      EXPECT_EQ(other->Forward(tied.forward, tied.input(0)).scalar_type(), at::kBFloat16);
      return absl::OkStatus();
    });
  }));
}

TEST(ShardedModuleTest, EvaluationInFullPrecisionHasTheOriginalDType) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("mlp"), plain = MakeTestModel("mlp");
    FsdpOptions options{.full_precision_in_eval = true};
    options.mixed_precision.param_dtype = DType::kBFloat16;
    options.mixed_precision.cast_root_forward_inputs = false;
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.fsdp1 = options}));
    return Caught([&] {
      const at::Tensor x = model.input(0);
      {
        at::NoGradGuard no_grad;
        EXPECT_TRUE(at::equal(sharded->Forward(model.forward, x), plain.forward(x)));
      }
      const at::Tensor y = sharded->Forward(model.forward, x.to(at::kBFloat16));
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      {
        at::NoGradGuard no_grad;  // between a forward and its backward
        EXPECT_TRUE(at::equal(sharded->Forward(model.forward, x), plain.forward(x)));
      }
      y.sum().backward();
      EXPECT_TRUE(sharded->parameters()[0]->has_grad);
      return absl::OkStatus();
    });
  }));
}

// The outputs of a forward are of any type, and any of them can have a backward.
struct HeadsImpl : torch::nn::Module {
  struct Output {
    at::Tensor left, right;
    template <typename Visitor>
    void VisitTensors(const Visitor& visit) const {
      visit(left);
      visit(right);
    }
  };
  HeadsImpl() {
    left = register_module("left", torch::nn::Linear(4, 4));
    right = register_module("right", torch::nn::Linear(4, 4));
  }
  Output forward(const at::Tensor& x) { return {left(x), right(x)}; }
  torch::nn::Linear left{nullptr}, right{nullptr};
};

TEST(ShardedModuleTest, BackwardOfSomeOutputsOfAnyStructureReachesTheirUnitsAlone) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    HeadsImpl heads;
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
    FSDP_ASSIGN_OR_RETURN(const auto sharded, FullyShard(heads, mesh, HasTypeName({"Linear"})));
    const at::Tensor x = at::ones({3, 4});
    const auto has_grad = [&] {
      std::vector<bool> has;
      for (const ShardedParameter* p : sharded->parameters()) has.push_back(p->has_grad);
      for (ShardedParameter* p : sharded->parameters()) p->has_grad = false;
      return has;
    };
    using ::testing::ElementsAre;
    return Caught([&] {
      const HeadsImpl::Output both = sharded->Forward([&] { return heads.forward(x); });
      both.right.sum().backward();
      EXPECT_THAT(has_grad(), ElementsAre(false, false, true, true));
      both.left.sum().backward();  // of the same forward
      EXPECT_THAT(has_grad(), ElementsAre(true, true, false, false));

      const auto tuple = sharded->Forward([&] {
        const HeadsImpl::Output out = heads.forward(x);
        return std::make_tuple(std::vector<at::Tensor>{out.left}, std::map<std::string, at::Tensor>{{"r", out.right}});
      });
      std::get<0>(tuple)[0].sum().backward();
      EXPECT_THAT(has_grad(), ElementsAre(true, true, false, false));

      at::Tensor kept;  // in no output
      sharded->Forward([&] { kept = heads.forward(x).right; });
      kept.sum().backward();
      EXPECT_THAT(has_grad(), ElementsAre(false, false, true, true));
      return absl::OkStatus();
    });
  }));
}

TEST(ShardedModuleTest, AuxiliaryLossesKeptByTheModelHaveTheirGradients) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    HeadsImpl heads;
    const at::Tensor before = heads.left->bias.detach().clone();
    FSDP_ASSIGN_OR_RETURN(const auto sharded,
                          Shard(heads, group, {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Linear"}))}));
    return Caught([&]() -> absl::Status {
      at::Tensor auxiliary;
      const at::Tensor y = sharded->Forward([&] {
        const HeadsImpl::Output out = heads.forward(at::ones({3, 4}));
        auxiliary = out.left.sum();
        return out.right;
      });
      (y.sum() + 2 * auxiliary).backward();
      FSDP_ASSIGN_OR_RETURN(const Tensor left, sharded->fsdp().FullGradient("left.bias"));
      FSDP_ASSIGN_OR_RETURN(const Tensor right, sharded->fsdp().FullGradient("right.bias"));
      EXPECT_EQ(left.data_as<float>()[0], 6);
      EXPECT_EQ(right.data_as<float>()[0], 3);
      return absl::OkStatus();
    });
  }));
}

TEST(ShardedModuleTest, ClippingIsThatOfLibTorch) {
  at::set_num_threads(1);
  const TestModel plain = MakeTestModel("mlp");
  plain.forward(plain.input(0)).square().sum().backward();
  const double norm = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.5);
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("mlp");
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {}));
    FSDP_RETURN_IF_ERROR(Caught([&] {
      sharded->Forward(model.forward, model.input(0)).square().sum().backward();
      return absl::OkStatus();
    }));
    FSDP_ASSIGN_OR_RETURN(const float ours, sharded->fsdp().ClipGradNorm(0.5f));
    EXPECT_NEAR(ours, norm, 1e-5 * norm);
    FSDP_ASSIGN_OR_RETURN(const Tensor gradient, sharded->fsdp().FullGradient("layers.0.weight"));
    const at::Tensor wanted = plain.module->named_parameters()["layers.0.weight"].grad().contiguous();
    for (int64_t i = 0; i < wanted.numel(); ++i) {
      EXPECT_NEAR(gradient.data_as<float>()[i], wanted.data_ptr<float>()[i], 1e-6);
    }
    return absl::OkStatus();
  }));
}

// Checkpoint: the same bits without what it does not keep, by one unit or several, in units that recompute within
// others.
TEST(ShardedModuleTest, ActivationCheckpointingHasTheSameBits) {
  const auto run = [](bool checkpoint, int blocks_a_part, bool fsdp2, int64_t* saved) {
    TorchValues values;
    EXPECT_OK(RunRanks(2, [&, checkpoint, blocks_a_part](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      at::set_num_threads(1);
      const TestModel model = MakeTestModel("transformer_encoder");
      FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.use_fsdp2 = fsdp2}));
      auto layers = std::static_pointer_cast<torch::nn::Module>(model.module->named_children()["encoder"])
                        ->named_children()["layers"];
      std::vector<std::shared_ptr<torch::nn::TransformerEncoderLayerImpl>> blocks;
      for (const auto& child : layers->children()) {
        blocks.push_back(std::dynamic_pointer_cast<torch::nn::TransformerEncoderLayerImpl>(child));
      }
      torch::optim::SGD optimizer(sharded->LocalParameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      FSDP_RETURN_IF_ERROR(Caught([&] {
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          const at::Tensor y = sharded->Forward([&] {
            at::Tensor x = model.input(step);
            for (size_t i = 0; i < blocks.size(); i += blocks_a_part) {
              const auto part = [&blocks, i, blocks_a_part](const at::Tensor& in) {
                at::Tensor out = in;
                for (size_t k = i; k < std::min(blocks.size(), i + blocks_a_part); ++k) out = blocks[k]->forward(out);
                return out;
              };
              x = checkpoint ? sharded->Checkpoint(part, x) : part(x);
            }
            return x;
          });
          y.square().mean().backward();
          optimizer.step();
        }
        return absl::OkStatus();
      }));
      if (saved != nullptr && group->rank() == 0) *saved = sharded->TakePeakBoundBytes();
      const bool is_first = group->rank() == 0;
      FSDP_ASSIGN_OR_RETURN(TorchValues mine, FullValues(*sharded));
      if (is_first) values = std::move(mine);
      return absl::OkStatus();
    }));
    return values;
  };
  for (const bool fsdp2 : {false, true}) {
    int64_t without = 0, with = 0;
    const TorchValues wanted = run(false, 1, fsdp2, &without);
    ASSERT_FALSE(wanted.empty());
    EXPECT_EQ(LargestDifference(wanted, run(true, 1, fsdp2, &with)), 0);
    EXPECT_EQ(with, without);
    EXPECT_EQ(LargestDifference(wanted, run(true, 2, fsdp2, nullptr)), 0);
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

TEST(ShardedModuleTest, IgnoredModulesKeepTheirMemory) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    HeadsImpl heads;
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<MirrorModule> mirror, MirrorModule::Create(TreeOf(heads)));
    FsdpOptions options{.ignored_modules = {mirror->Find("left")}};
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardedModule::Wrap(std::move(mirror), group, options));
    EXPECT_EQ(sharded->parameters().size(), 2u);
    return Caught([&] {
      EXPECT_EQ(heads.left->weight.sum().item<float>(), heads.left->weight.detach().sum().item<float>());
      const HeadsImpl::Output out = sharded->Forward([&] { return heads.forward(at::ones({3, 4})); });
      (out.left.sum() + out.right.sum()).backward();
      EXPECT_EQ(heads.left->bias.grad()[0].item<float>(), 3);
      EXPECT_FALSE(heads.right->bias.grad().defined());
      return absl::OkStatus();
    });
  }));
}

}  // namespace
}  // namespace fsdp
