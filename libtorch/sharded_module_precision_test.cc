// SPDX-License-Identifier: Apache-2.0
//
// Mixed precision of sharded modules of LibTorch: dtypes of units and the casts at their borders, equal in every bit to
// casts that a program would write.
#include <torch/nn.h>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/mixed_net_testutil.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// A batch norm that stays in float32 as a unit of its own, and buffers in buffer_dtype.
TEST(ShardedModulePrecisionTest, EveryUnitHasItsOwnDType) {
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

TEST(ShardedModulePrecisionTest, EvaluationInFullPrecisionHasTheOriginalDType) {
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

// Blocks in bfloat16, the root in float32; gradients are reduced in float32.
MixedPrecision Low(bool casts) {
  MixedPrecision precision;
  precision.param_dtype = DType::kBFloat16;
  precision.reduce_dtype = DType::kFloat32;
  precision.cast_forward_inputs = casts;
  return precision;
}

absl::StatusOr<std::unique_ptr<ShardedModule>> ShardBlocks1(MixedNetImpl& net, std::shared_ptr<ProcessGroup> group) {
  FsdpOptions options{.auto_wrap_policy = CustomWrapPolicy([](Module& module) -> std::optional<UnitOverrides> {
                        if (module.type_name() != "MixedBlock") return std::nullopt;
                        return UnitOverrides{.mixed_precision = Low(true)};
                      })};
  return Shard(net, std::move(group), options);
}

// Each block with `policy`, the root without one.
absl::StatusOr<std::unique_ptr<ShardedModule>> ShardBlocks2(MixedNetImpl& net, std::shared_ptr<ProcessGroup> group,
                                                            const MixedPrecisionPolicy& policy) {
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  FSDP_ASSIGN_OR_RETURN(auto mirror, MirrorModule::Create(TreeOf(net)));
  for (const char* block : {"blocks.0", "blocks.1"}) {
    Module& module = *mirror->Find(block);
    FSDP_RETURN_IF_ERROR(FullyShard(module, mesh, FullyShardOptions{.mp_policy = policy}).status());
  }
  FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*mirror), mesh, FullyShardOptions()).status());
  return ShardedModule::FromFullyShard(std::move(mirror));
}

MixedPrecisionPolicy LowPolicy() {
  MixedPrecisionPolicy policy;
  policy.param_dtype = DType::kBFloat16;
  policy.reduce_dtype = DType::kFloat32;
  return policy;
}

// As Python's fully_shard: casts at the block's entry and at its return.
TEST(ShardedModulePrecisionTest, ACalledUnitCastsItsInputsAndOutputs) {
  const TorchValues wanted = TrainMixedPlain([](MixedBlockImpl& block, const at::Tensor& x) {
    const at::Tensor low = x.to(at::kBFloat16);
    return block.Compute(low, low).to(at::kFloat);
  });
  MixedPrecisionPolicy policy = LowPolicy();
  policy.output_dtype = DType::kFloat32;
  const auto trained = TrainMixedSharded(
      [&](MixedNetImpl& net, std::shared_ptr<ProcessGroup> group) { return ShardBlocks2(net, group, policy); }, true);
  ASSERT_OK(trained.status());
  EXPECT_EQ(LargestDifference(wanted, *trained), 0);
}

// Each of its three readers has the cast that one entry would have made: gradients are summed in bfloat16.
TEST(ShardedModulePrecisionTest, AUnitThatIsNotCalledCastsAtItsOperators) {
  const TorchValues wanted = TrainMixedPlain([](MixedBlockImpl& block, const at::Tensor& x) {
    return block.Compute(x, x.to(at::kBFloat16));  // the sum with x promotes
  });
  const auto fsdp1 = TrainMixedSharded(ShardBlocks1, false);
  ASSERT_OK(fsdp1.status());
  EXPECT_EQ(LargestDifference(wanted, *fsdp1), 0);
  const auto fsdp2 = TrainMixedSharded(
      [](MixedNetImpl& net, std::shared_ptr<ProcessGroup> group) { return ShardBlocks2(net, group, LowPolicy()); },
      false);
  ASSERT_OK(fsdp2.status());
  EXPECT_EQ(LargestDifference(wanted, *fsdp2), 0);
  // The two are not the same training: an entry's cast reaches the sum as well.
  const TorchValues entry = TrainMixedPlain([](MixedBlockImpl& block, const at::Tensor& x) {
    const at::Tensor low = x.to(at::kBFloat16);
    return block.Compute(low, low).to(at::kFloat);
  });
  EXPECT_GT(LargestDifference(wanted, entry), 0);
}

TEST(ShardedModulePrecisionTest, WithoutCastsMixedDTypesAreLibTorchsError) {
  MixedPrecisionPolicy policy = LowPolicy();
  policy.cast_forward_inputs = false;
  const auto trained = TrainMixedSharded(
      [&](MixedNetImpl& net, std::shared_ptr<ProcessGroup> group) { return ShardBlocks2(net, group, policy); }, true);
  EXPECT_THAT(trained.status().message(), ::testing::HasSubstr("Float"));
}

// A batch norm that keeps float32 returns the dtype that came in, and its buffers stay its own.
TEST(ShardedModulePrecisionTest, ABatchNormInFullPrecisionReturnsTheDTypeThatCameIn) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    at::set_num_threads(1);
    const TestModel model = MakeTestModel("conv_net"), plain = MakeTestModel("conv_net");
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.fsdp1 = {.mixed_precision = Low(false)}}));
    return Caught([&] {
      const at::Tensor y = sharded->Forward(model.forward, model.input(0));
      const auto child = [&](const char* name) { return plain.module->named_children()[name]; };
      for (const char* low : {"conv1", "conv2", "fc"}) child(low)->to(at::kBFloat16);
      at::Tensor x = child("conv1")->as<torch::nn::Conv2d>()->forward(model.input(0).to(at::kBFloat16));
      x = child("norm")->as<torch::nn::BatchNorm2d>()->forward(x.to(at::kFloat)).to(at::kBFloat16);
      x = child("conv2")->as<torch::nn::Conv2d>()->forward(torch::relu(x));
      x = child("fc")->as<torch::nn::Linear>()->forward(torch::relu(x).flatten(1));
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::equal(y, x));
      for (const auto& buffer : plain.module->named_buffers()) {
        EXPECT_TRUE(at::equal(model.module->named_buffers()[buffer.key()], buffer.value())) << buffer.key();
      }
      return absl::OkStatus();
    });
  }));
}

struct ScaleImpl : torch::nn::Module {
  ScaleImpl() { scale = register_parameter("scale", at::full({4}, 1.5)); }
  at::Tensor scale;
};

// An operator that gets an activation in float32 computes the gradient of a bfloat16 weight in float32. FSDP2 reduces
// it in float32; FSDP1 rounds it. bfloat16 cannot represent 1 + 2^-12.
TEST(ShardedModulePrecisionTest, GradientsThatAnOperatorComputesWiderAreReducedSoByFsdp2) {
  constexpr float kFine = 1 + 1.0f / 4096;
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    for (const bool fsdp2 : {false, true}) {
      SCOPED_TRACE(testing::Message() << "FSDP" << (fsdp2 ? 2 : 1));
      const float one = fsdp2 ? kFine : 1;
      ScaleImpl net;
      FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
      FSDP_ASSIGN_OR_RETURN(const auto sharded, fsdp2 ? FullyShard(net, mesh, {}, {.mp_policy = LowPolicy()})
                                                      : Shard(net, group, {.mixed_precision = Low(true)}));
      const auto backward = [&] {
        return Caught([&] {
          const at::Tensor x = at::full({1, 4}, kFine);
          sharded->Forward([&] { return x * net.scale; }).sum().backward();
          return absl::OkStatus();
        });
      };
      const auto expect_gradient = [&](float wanted) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(const Tensor gradient, sharded->fsdp().GetFullGradient("scale"));
        EXPECT_TRUE(at::equal(at::from_blob(gradient.data(), {4}), at::full({4}, wanted))) << wanted;
        return absl::OkStatus();
      };
      FSDP_RETURN_IF_ERROR(backward());
      FSDP_RETURN_IF_ERROR(expect_gradient(one));
      {
        const NoSyncGuard no_sync(sharded->fsdp());
        FSDP_RETURN_IF_ERROR(backward());
      }
      FSDP_RETURN_IF_ERROR(backward());
      FSDP_RETURN_IF_ERROR(expect_gradient(3 * one));
    }
    return absl::OkStatus();
  }));
}

struct OperandsImpl : torch::nn::Module {
  OperandsImpl() {
    lstm = register_module("lstm", torch::nn::LSTM(4, 4));
    scale = register_parameter("scale", at::full({4}, 1.5));
  }
  torch::nn::LSTM lstm{nullptr};
  at::Tensor scale;
};

TEST(ShardedModulePrecisionTest, OperandsInListsAreCastAndElementwiseOperatorsPromote) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    OperandsImpl net;
    FSDP_ASSIGN_OR_RETURN(const auto sharded, Shard(net, group, {.mixed_precision = Low(true)}));
    return Caught([&] {
      const at::Tensor x = at::ones({3, 2, 4}), h = at::zeros({1, 2, 4}), ids = at::arange(4);
      sharded->Forward([&] {
        const auto [y, state] = net.lstm->forward(x, std::make_tuple(h, h));
        EXPECT_EQ(y.scalar_type(), at::kBFloat16);
        EXPECT_EQ(std::get<0>(state).scalar_type(), at::kBFloat16);
        EXPECT_EQ((x * net.scale).scalar_type(), at::kFloat);       // element by element
        EXPECT_EQ((ids * net.scale).scalar_type(), at::kBFloat16);  // integers are no operands to cast
        EXPECT_EQ(x.matmul(net.scale).scalar_type(), at::kBFloat16);
        at::Tensor written = at::zeros({4});
        written.copy_(net.scale);
        EXPECT_EQ(written.scalar_type(), at::kFloat);
        return y;
      });
      EXPECT_EQ(x.scalar_type(), at::kFloat);
      EXPECT_THAT(ErrorOf([&] { x.matmul(at::ones({4}, at::kBFloat16)); }), ::testing::Not(::testing::IsEmpty()));
      return absl::OkStatus();
    });
  }));
}

// The first run of a part is without autograd: its casts must not be reused in the second run.
TEST(ShardedModulePrecisionTest, OperandsAreCastAgainWhereAPartIsRecomputed) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    at::set_num_threads(1);
    std::vector<at::Tensor> gradients;
    for (const bool checkpoint : {false, true}) {
      const auto net = MakeMixedNet();
      FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardBlocks1(*net, group));
      const at::Tensor x = MixedInput(0).requires_grad_();
      FSDP_RETURN_IF_ERROR(Caught([&] {
        const at::Tensor y = sharded->Forward([&] {
          return net->Compute(x, [&](MixedBlockImpl& block, const at::Tensor& in) {
            const auto part = [&block](const at::Tensor& given) { return block.forward(given); };
            return checkpoint ? sharded->Checkpoint(part, in) : part(in);
          });
        });
        y.square().mean().backward();
        return absl::OkStatus();
      }));
      gradients.push_back(x.grad());
    }
    EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
    return absl::OkStatus();
  }));
}

TEST(ShardedModulePrecisionTest, TheRootCastsInputsAndOutputsAtAnyDepth) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    torch::nn::Linear net(4, 4);
    MixedPrecisionPolicy policy = LowPolicy();
    policy.output_dtype = DType::kFloat64;
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
    FSDP_ASSIGN_OR_RETURN(const auto sharded, FullyShard(*net, mesh, {}, {.mp_policy = policy}));
    using Input = std::map<std::string, std::vector<at::Tensor>>;
    const Input input = {{"x", {at::ones({2, 4}), at::arange(2)}}};
    return Caught([&] {
      const auto output = sharded->Forward(
          [&](const Input& given) {
            const std::vector<at::Tensor>& x = given.at("x");
            EXPECT_EQ(x[0].scalar_type(), at::kBFloat16);
            EXPECT_EQ(x[1].scalar_type(), at::kLong);
            return std::make_tuple(net(x[0]), c10::IValue(std::vector<at::Tensor>{x[0], x[1]}), std::string("text"));
          },
          input);
      EXPECT_EQ(input.at("x")[0].scalar_type(), at::kFloat);
      EXPECT_EQ(std::get<0>(output).scalar_type(), at::kDouble);
      EXPECT_EQ(std::get<1>(output).toTensorVector()[0].scalar_type(), at::kDouble);
      EXPECT_EQ(std::get<1>(output).toTensorVector()[1].scalar_type(), at::kLong);
      std::get<0>(output).sum().backward();
      for (const ShardedParameter* p : sharded->parameters()) EXPECT_TRUE(p->has_grad);
      EXPECT_THAT(ErrorOf([&] { sharded->Forward([&]() -> const Input& { return input; }); }),
                  ::testing::HasSubstr("returns a reference"));
      return absl::OkStatus();
    });
  }));
}

}  // namespace
}  // namespace fsdp
