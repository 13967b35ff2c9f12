// SPDX-License-Identifier: Apache-2.0
//
// Misuses of a sharded module, and that the module can still be used afterwards.
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstring>
#include <thread>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Runs `body` with a sharded model, on each of two threads.
void OnTwoRanks(const std::string& name, const TestSharding& sharding,
                const std::function<void(ShardedModule& sharded, const TestModel& model)>& body) {
  EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    at::set_num_threads(1);
    const TestModel model = MakeTestModel(name);
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, sharding));
    return Caught([&] {
      body(*sharded, model);
      return absl::OkStatus();
    });
  }));
}

// Runs a step and expects the gradients of plain LibTorch.
void ExpectUsable(ShardedModule& sharded, const TestModel& model) {
  for (ShardedParameter* parameter : sharded.parameters()) parameter->has_grad = false;
  sharded.Forward(model.forward, model.input(3)).square().sum().backward();
  const TestModel plain = MakeTestModel("transformer_encoder");
  plain.forward(plain.input(3)).square().sum().backward();
  for (const auto& item : plain.module->named_parameters()) {
    const auto gradient = sharded.fsdp().GetFullGradient(item.key());
    ASSERT_OK(gradient.status());
    const at::Tensor wanted = item.value().grad().contiguous();
    ASSERT_EQ(gradient->numel(), wanted.numel());
    EXPECT_EQ(std::memcmp(gradient->data(), wanted.data_ptr(), wanted.nbytes()), 0) << item.key();
  }
}

constexpr char kModel[] = "transformer_encoder";

TEST(ShardedModuleErrorsTest, AUseOutsideOfForwardNamesTheParameterAndItsUnit) {
  OnTwoRanks("tied_transformer", {}, [](ShardedModule& sharded, const TestModel& model) {
    EXPECT_THAT(ErrorOf([&] { model.forward(model.input(0)); }),
                AllOf(HasSubstr("parameter \"head\" is sharded and its unit (root) not gathered"),
                      HasSubstr("within ShardedModule::Forward")));
    at::Tensor weight = model.module->named_parameters()["blocks.1.in.weight"];
    EXPECT_THAT(ErrorOf([&] { (weight * 2).sum(); }),
                HasSubstr("parameter \"blocks.1.in.weight\" is sharded and its unit (blocks.1) not gathered"));
    // Within a Forward it is gathered; outside of it, its memory is gone again.
    EXPECT_THAT(ErrorOf([&] { sharded.Forward([&] { return weight.sum(); }); }), IsEmpty());
    EXPECT_THAT(ErrorOf([&] { weight.data_ptr(); }), HasSubstr("blocks.1.in.weight"));
  });
}

// The saved view W.t() of a unit whose slot another unit has taken must never show the other's weights.
TEST(ShardedModuleErrorsTest, AViewThatOutlivesItsUnitIsAnErrorAndNeverAnotherUnitsWeights) {
  OnTwoRanks(kModel, {}, [](ShardedModule& sharded, const TestModel& model) {
    at::Tensor view, copy;
    sharded.Forward([&] {
      const at::Tensor weight = model.module->named_parameters()["encoder.layers.0.linear1.weight"];
      view = weight.detach().t();
      copy = view.clone();
      return model.forward(model.input(0));
    });
    EXPECT_THAT(ErrorOf([&] { view.sum(); }), HasSubstr("\"encoder.layers.0.linear1.weight\" is sharded"));
    sharded.Forward([&] { EXPECT_TRUE(at::equal(view, copy)); });  // gathered again on use
  });
}

TEST(ShardedModuleErrorsTest, AForwardThatThrowsLeavesItUsable) {
  for (const bool fsdp2 : {false, true}) {
    OnTwoRanks(kModel, {.use_fsdp2 = fsdp2}, [](ShardedModule& sharded, const TestModel& model) {
      EXPECT_THAT(ErrorOf([&] { sharded.Forward(model.forward, at::zeros({2, 2, 15})); }), Not(IsEmpty()));
      EXPECT_THROW(sharded.Forward([&]() -> at::Tensor {
        model.forward(model.input(0));
        throw std::runtime_error("of the program's own");
      }),
                   std::runtime_error);
      EXPECT_EQ(sharded.bound_bytes(), 0);
      ExpectUsable(sharded, model);
    });
  }
}

struct Failing : torch::autograd::Function<Failing> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*, const torch::autograd::tensor_list&) {
    TORCH_CHECK(false, "a backward of the program's own fails");
  }
};

TEST(ShardedModuleErrorsTest, ABackwardThatThrowsLeavesItUsable) {
  for (const bool fsdp2 : {false, true}) {
    OnTwoRanks(kModel, {.use_fsdp2 = fsdp2}, [](ShardedModule& sharded, const TestModel& model) {
      const at::Tensor y = sharded.Forward([&] {
        // In the middle: the last layer has had its backward when this fails.
        at::Tensor x = Failing::apply(model.forward(model.input(0)));
        return model.forward(x);
      });
      EXPECT_THAT(ErrorOf([&] { y.sum().backward(); }), HasSubstr("of the program's own fails"));
      EXPECT_THAT(sharded.fsdp().ClipGradNorm(1).status().message(), HasSubstr("after one that failed"));
      ExpectUsable(sharded, model);
    });
  }
}

TEST(ShardedModuleErrorsTest, CreateGraphIsRefused) {
  OnTwoRanks(kModel, {}, [](ShardedModule& sharded, const TestModel& model) {
    at::Tensor y = sharded.Forward(model.forward, model.input(0));
    EXPECT_THAT(ErrorOf([&] { y.sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true); }),
                HasSubstr("create_graph of a sharded module is not supported"));
    at::Tensor kept;
    sharded.Forward([&] { kept = model.forward(model.input(0)); });
    EXPECT_THAT(ErrorOf([&] { kept.sum().backward({}, true, true); }), HasSubstr("create_graph"));
    ExpectUsable(sharded, model);
  });
}

TEST(ShardedModuleErrorsTest, AStepBetweenForwardAndBackwardIsRefused) {
  OnTwoRanks(kModel, {}, [](ShardedModule& sharded, const TestModel& model) {
    torch::optim::SGD optimizer(sharded.LocalParameters(), torch::optim::SGDOptions(0.1));
    sharded.Forward(model.forward, model.input(0)).sum().backward();
    const at::Tensor y = sharded.Forward(model.forward, model.input(0));
    at::Tensor kept;
    sharded.Forward([&] { kept = model.forward(model.input(0)); });
    optimizer.step();
    // The message of plain LibTorch, by versions. No output shows that backward begins, so the first use does.
    EXPECT_THAT(ErrorOf([&] { y.sum().backward(); }), HasSubstr("modified by an inplace operation"));
    EXPECT_THAT(ErrorOf([&] { kept.sum().backward(); }), Not(IsEmpty()));
    // A later forward does not make the old graph valid.
    sharded.Forward(model.forward, model.input(0)).sum().backward();
    EXPECT_THAT(ErrorOf([&] { kept.sum().backward(); }), HasSubstr("modified by an inplace operation"));
  });
  OnTwoRanks(kModel, {}, [](ShardedModule& sharded, const TestModel& model) {
    ExpectUsable(sharded, model);
    at::Tensor kept;
    sharded.Forward([&] { kept = model.forward(model.input(0)); });
    for (ShardedParameter* parameter : sharded.parameters()) parameter->MarkChanged();
    EXPECT_THAT(ErrorOf([&] { kept.sum().backward(); }),
                HasSubstr("changed after the forward that this backward is of"));
    ExpectUsable(sharded, model);
  });
}

TEST(ShardedModuleErrorsTest, AGraphMayOutliveItsShardedModule) {
  EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel(kModel);
    FSDP_ASSIGN_OR_RETURN(auto sharded, ShardTestModel(model, group, {}));
    return Caught([&] {
      const at::Tensor y = sharded->Forward(model.forward, model.input(0));
      at::Tensor kept;
      sharded->Forward([&] { kept = model.forward(model.input(0)); });
      sharded.reset();
      EXPECT_THAT(ErrorOf([&] { y.sum().backward(); }), HasSubstr("ShardedModule is gone"));
      EXPECT_THAT(ErrorOf([&] { kept.sum().backward(); }), HasSubstr("ShardedModule is gone"));
      EXPECT_THAT(ErrorOf([&] { model.forward(model.input(0)); }), HasSubstr("ShardedModule is gone"));
      return absl::OkStatus();
    });
  }));
}

TEST(ShardedModuleErrorsTest, PassesWithinPassesAreRefused) {
  OnTwoRanks(kModel, {}, [](ShardedModule& sharded, const TestModel& model) {
    EXPECT_THAT(ErrorOf([&] { sharded.Forward([&] { return sharded.Forward(model.forward, model.input(0)); }); }),
                HasSubstr("Forward of a ShardedModule within its Forward"));
    EXPECT_THAT(ErrorOf([&] { sharded.Forward([&] { model.forward(model.input(0)).sum().backward(); }); }),
                HasSubstr("within its Forward: call it after Forward returned"));
    EXPECT_THAT(ErrorOf([&] { sharded.Checkpoint([](const at::Tensor& x) { return x; }, model.input(0)); }),
                HasSubstr("Checkpoint outside of ShardedModule::Forward"));
    EXPECT_THAT(ErrorOf([&] {
                  sharded.Forward([&] {
                    const absl::Status status = sharded.SummonFullParams().status();
                    TORCH_CHECK(false, std::string(status.message()));
                  });
                }),
                HasSubstr("SummonFullParams within a Forward"));
    ExpectUsable(sharded, model);
  });
}

TEST(ShardedModuleErrorsTest, AnotherThreadInForwardIsNamed) {
  OnTwoRanks(kModel, {}, [](ShardedModule& sharded, const TestModel& model) {
    const auto forked = [&] {
      const at::ThreadLocalState state;  // as torch.jit.fork hands it on
      std::thread([&] {
        const at::ThreadLocalStateGuard guard(state);
        ErrorOf([&] { model.forward(model.input(0)); });
      }).join();
      return at::Tensor();
    };
    EXPECT_THAT(ErrorOf([&] { sharded.Forward(forked); }), HasSubstr("was used by another thread than Forward"));
    ExpectUsable(sharded, model);
  });
}

TEST(ShardedModuleErrorsTest, AParameterThatTheProgramReplacedIsNamed) {
  OnTwoRanks(kModel, {}, [](ShardedModule& sharded, const TestModel& model) {
    at::Tensor bias = model.module->named_parameters()["encoder.layers.1.linear1.bias"];
    bias.requires_grad_(false);
    EXPECT_THAT(
        ErrorOf([&] { sharded.Forward(model.forward, model.input(0)); }),
        AllOf(HasSubstr("parameter \"encoder.layers.1.linear1.bias\""), HasSubstr("requires_grad was changed")));
    bias.requires_grad_(true);
    bias.set_data(at::zeros_like(bias, at::kFloat));
    EXPECT_THAT(ErrorOf([&] { sharded.Forward(model.forward, model.input(0)); }),
                HasSubstr("memory was replaced after it was sharded"));
  });
}

TEST(ShardedModuleErrorsTest, ToAndHalfAfterShardingNameTheParameterAndChangeNothing) {
  for (const bool fsdp2 : {false, true}) {
    OnTwoRanks(kModel, {.use_fsdp2 = fsdp2}, [](ShardedModule& sharded, const TestModel& model) {
      for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
        EXPECT_THAT(ErrorOf([&] { model.module->to(type); }),
                    AllOf(HasSubstr("parameter \"encoder.layers.0."), HasSubstr("call to() and half() before")));
      }
      ExpectUsable(sharded, model);
      {
        const auto guard = sharded.SummonFullParams();
        ASSERT_OK(guard.status());
        model.module->to(at::kHalf);
      }
      EXPECT_THAT(ErrorOf([&] { sharded.Forward(model.forward, model.input(0)); }),
                  AllOf(HasSubstr("parameter \"encoder.layers.0."), HasSubstr("call to(), half() and set_data()")));
    });
  }
}

// A prebuilt encoder calls its layers itself.
TEST(ShardedModuleErrorsTest, AUnitThatMustBeCalledAndIsNotIsNamedAtItsFirstUse) {
  OnTwoRanks(kModel, {.fsdp1 = {.activation_checkpointing = true}}, [](ShardedModule& sharded, const TestModel& model) {
    EXPECT_THAT(ErrorOf([&] { sharded.Forward(model.forward, model.input(0)); }),
                AllOf(HasSubstr("unit encoder.layers.0 has activation_checkpointing"), HasSubstr("CallUnit(child")));
  });
  MixedPrecisionPolicy policy;
  policy.output_dtype = DType::kFloat32;
  OnTwoRanks(kModel, {.use_fsdp2 = true, .fsdp2 = {.mp_policy = policy}},
             [](ShardedModule& sharded, const TestModel& model) {
               EXPECT_THAT(ErrorOf([&] { sharded.Forward(model.forward, model.input(0)); }),
                           AllOf(HasSubstr("unit encoder.layers.0 has mp_policy.output_dtype"), HasSubstr("CallUnit")));
             });
}

TEST(ShardedModuleErrorsTest, OptionsThatLibTorchCannotHaveAreRefusedByName) {
  EXPECT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const auto refused = [&](const char* name, const TestSharding& sharding) {
      return std::string(ShardTestModel(MakeTestModel(name), group, sharding).status().message());
    };
    // TorchScript calls its children itself.
    EXPECT_THAT(refused("script", {.fsdp1 = {.activation_checkpointing = true}}),
                AllOf(HasSubstr("activation_checkpointing (unit block0)"), HasSubstr("ShardedModule::Checkpoint")));
    MixedPrecisionPolicy policy;
    policy.output_dtype = DType::kFloat32;
    EXPECT_THAT(refused("script", {.use_fsdp2 = true, .fsdp2 = {.mp_policy = policy}}),
                AllOf(HasSubstr("mp_policy.output_dtype (unit block0)"), HasSubstr("TorchScript")));
    const auto everything = [](Module&) { return std::optional<UnitOverrides>({.activation_checkpointing = true}); };
    EXPECT_THAT(refused("mlp", {.fsdp1 = {.auto_wrap_policy = CustomWrapPolicy(everything)}}),
                HasSubstr("activation_checkpointing (layers"));
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {1}, {"shard"}));
    torch::nn::Linear root(2, 2);
    FSDP_ASSIGN_OR_RETURN(auto mirror, MirrorModule::Create(TreeOf(*root)));
    Module& module = *mirror;
    FSDP_RETURN_IF_ERROR(FullyShard(module, mesh, FullyShardOptions{.activation_checkpointing = true}).status());
    EXPECT_THAT(ShardedModule::FromFullyShard(std::move(mirror)).status().message(),
                HasSubstr("activation_checkpointing (root)"));
    return absl::OkStatus();
  }));
}

TEST(ShardedModuleErrorsTest, TensorsThatCannotBeShardedAreNamed) {
  EXPECT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    torch::nn::Module meta("meta");
    meta.register_parameter("weight", at::empty({2, 2}, at::TensorOptions().device(at::kMeta)));
    EXPECT_THAT(Shard(meta, group).status().message(),
                AllOf(HasSubstr("parameter \"weight\""), HasSubstr("on meta"), HasSubstr("a dense one with memory")));
    torch::nn::Linear twice(2, 2);
    FSDP_ASSIGN_OR_RETURN(const auto first, Shard(*twice, group));
    EXPECT_THAT(Shard(*twice, group).status().message(), HasSubstr("parameter \"weight\""));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
