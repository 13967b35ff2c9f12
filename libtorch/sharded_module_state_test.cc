// SPDX-License-Identifier: Apache-2.0
//
// State dicts and checkpoints of sharded modules of LibTorch, and TorchOptimizer's state in them.
#include <torch/nn.h>
#include <torch/optim.h>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/optimizers_testutil.h"
#include "fsdp/libtorch/tensor_bridge.h"
#include "fsdp/libtorch/torch_optimizer.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace optim = torch::optim;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TorchOptimizerTest : public ::testing::TestWithParam<int> {
 protected:
  const MakeOptimizer& make() const { return TestOptimizers()[GetParam()].second; }
};

TEST_P(TorchOptimizerTest, StepsAsInPlainLibTorch) {
  at::set_num_threads(1);
  const TestModel plain = MakeTestModel("tied_transformer");
  const auto optimizer = make()(plain.parameters());
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    plain.forward(plain.input(step)).square().mean().backward();
    optimizer->step();
  }
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(OptimizerTraining trainer, OptimizerTraining::Create(group, make()));
    for (int step = 0; step < 4; ++step) FSDP_RETURN_IF_ERROR(trainer.Step(step));
    FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*trainer.sharded));
    TorchValues wanted = {{"scale", plain.module->named_buffers()["scale"]}};
    for (const auto& item : plain.module->named_parameters()) {
      wanted[item.key()] = item.value().detach();
    }
    EXPECT_EQ(LargestDifference(wanted, values), 0);
    return absl::OkStatus();
  }));
}

// Saved on two ranks in each form of state dict, restored on one, two and three, and trained on: as if never saved.
TEST_P(TorchOptimizerTest, ItsStateIsInCheckpointsOfEveryFormAndGoesOnOnOtherRanks) {
  const std::string root = testing::TempDir() + "/" + TestOptimizers()[GetParam()].first;
  const auto resumed = ResumeOnOtherRanks(make(), root, /*max_norm=*/std::nullopt);
  ASSERT_OK(resumed.status());
  EXPECT_EQ(resumed->size(), 9u);
  for (const ResumedTraining& one : *resumed) EXPECT_EQ(one.difference, 0) << one.what;
}

INSTANTIATE_TEST_SUITE_P(All, TorchOptimizerTest, ::testing::Range(0, 6),
                         [](const auto& info) { return TestOptimizers()[info.param].first; });

TEST(TorchOptimizerErrorsTest, OptimizersOfOtherTensorsAndClassesAreRefused) {
  ASSERT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("mlp");
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {}));
    const std::vector<at::Tensor>& local = sharded->LocalParameters();
    const auto create = [&](std::unique_ptr<optim::Optimizer> optimizer) {
      return TorchOptimizer::Create(*sharded, std::move(optimizer)).status();
    };
    EXPECT_THAT(create(std::make_unique<optim::SGD>(model.parameters(), optim::SGDOptions(0.1))).message(),
                AllOf(HasSubstr("param group 0, tensor 0"), HasSubstr("LocalParameters()")));
    EXPECT_THAT(create(std::make_unique<optim::LBFGS>(local, optim::LBFGSOptions(0.1))).message(),
                AllOf(HasSubstr("LBFGS"), HasSubstr("Adam, AdamW, SGD, RMSprop or Adagrad")));
    EXPECT_THAT(create(nullptr).message(), HasSubstr("null"));
    const std::vector<at::Tensor> twice = {local[0], local[0]};
    EXPECT_THAT(create(std::make_unique<optim::SGD>(twice, optim::SGDOptions(0.1))).message(),
                HasSubstr("is in the groups twice"));
    return absl::OkStatus();
  }));
}

TEST(TorchOptimizerErrorsTest, HyperparametersAreCheckedByNameAndRange) {
  ASSERT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(OptimizerTraining trainer,
                          OptimizerTraining::Create(group, OptimizerMaker<optim::AdamW>(optim::AdamWOptions(1e-2))));
    TorchOptimizer& adamw = *trainer.optimizer;
    EXPECT_OK(adamw.SetHyperparameter("lr", 0.5));
    EXPECT_OK(adamw.SetHyperparameter("beta2", 0.9));
    EXPECT_EQ(adamw.optimizer().param_groups()[0].options().get_lr(), 0.5);
    EXPECT_EQ(adamw.ParamGroups()[0].values[2].second, 0.9);
    EXPECT_THAT(adamw.SetHyperparameter("lr", -1).message(), HasSubstr("AdamW, param group 0: lr is -1"));
    EXPECT_THAT(adamw.SetHyperparameter("beta1", 1).message(), HasSubstr("beta1"));
    EXPECT_OK(adamw.SetHyperparameter("amsgrad", 0));
    EXPECT_THAT(adamw.SetHyperparameter("amsgrad", 1).message(), HasSubstr("amsgrad is 0, not 1, and fixed"));
    EXPECT_THAT(adamw.SetHyperparameter("momentum", 1).message(), HasSubstr("no hyperparameter \"momentum\""));
    EXPECT_THAT(adamw.SetGroupHyperparameter(1, "lr", 1).message(), HasSubstr("param group 1"));
    return absl::OkStatus();
  }));
}

// ClipGradNormAsync leaves the scaling to the optimizer.
TEST(TorchOptimizerErrorsTest, ADeferredClipScalesTheStepAndNotTheGradient) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    TorchValues values[2];
    for (const bool deferred : {false, true}) {
      FSDP_ASSIGN_OR_RETURN(OptimizerTraining trainer,
                            OptimizerTraining::Create(group, OptimizerMaker<optim::SGD>(optim::SGDOptions(0.1))));
      FSDP_RETURN_IF_ERROR(Caught([&] {
        trainer.sharded->Forward(trainer.model.forward, trainer.model.input(0)).square().sum().backward();
        return absl::OkStatus();
      }));
      if (deferred) {
        FSDP_ASSIGN_OR_RETURN(const GradClip clip, trainer.sharded->fsdp().ClipGradNormAsync(0.5f));
        trainer.optimizer->set_grad_factor(clip.coefficient());
      } else {
        FSDP_RETURN_IF_ERROR(trainer.sharded->fsdp().ClipGradNorm(0.5f).status());
      }
      FSDP_RETURN_IF_ERROR(trainer.optimizer->Step(trainer.sharded->stream()));
      EXPECT_FALSE(trainer.optimizer->has_grad_factor());
      FSDP_ASSIGN_OR_RETURN(values[deferred], FullValues(*trainer.sharded));
    }
    EXPECT_EQ(LargestDifference(values[0], values[1]), 0);
    return absl::OkStatus();
  }));
}

// set_reshard_after_backward(false) keeps a unit unsharded from step to step, but only while its shards are the same.
TEST(TorchOptimizerErrorsTest, AnOptimizerOfLibTorchAloneIsNoticed) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("mlp");
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {.use_fsdp2 = true}));
    FSDP_RETURN_IF_ERROR(sharded->fsdp_module()->set_reshard_after_backward(false));
    optim::SGD optimizer(sharded->LocalParameters(), optim::SGDOptions(0.1));
    return Caught([&] {
      const at::Tensor x = model.input(0);
      const at::Tensor before = sharded->Forward(model.forward, x);
      before.square().sum().backward();
      optimizer.step();
      optimizer.zero_grad();
      for (const ShardedParameter* p : sharded->parameters()) EXPECT_TRUE(p->has_grad);  // until the next forward
      const at::Tensor after = sharded->Forward(model.forward, x);
      EXPECT_FALSE(at::equal(before, after));
      for (const ShardedParameter* p : sharded->parameters()) EXPECT_FALSE(p->has_grad);
      return absl::OkStatus();
    });
  }));
}

TEST(ShardedModuleStateTest, AStateDictOfPlainLibTorchsValuesIsLoaded) {
  const TestModel plain = MakeTestModel("conv_net");
  {
    at::NoGradGuard no_grad;
    for (at::Tensor& tensor : plain.module->parameters()) tensor.mul_(2);
    plain.module->named_buffers()["norm.running_mean"].fill_(3);
  }
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("conv_net");
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {}));
    FSDP_ASSIGN_OR_RETURN(StateDict state, sharded->fsdp().GetStateDict());
    const auto parameters = plain.module->named_parameters();
    const auto buffers = plain.module->named_buffers();
    for (const auto& [key, value] : state.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr) continue;
      const at::Tensor& from = parameters.contains(key.fqn) ? parameters[key.fqn] : buffers[key.fqn];
      TorchViewOf(tensor->shards[0].data, at::kCPU).view(from.sizes()).copy_(from.detach());
    }
    FSDP_RETURN_IF_ERROR(sharded->fsdp().LoadStateDict(state));
    EXPECT_EQ(model.module->named_buffers()["norm.running_mean"][0].item<float>(), 3);
    return Caught([&] {
      at::NoGradGuard no_grad;
      model.module->eval();
      plain.module->eval();
      EXPECT_TRUE(at::equal(sharded->Forward(model.forward, model.input(0)), plain.forward(model.input(0))));
      return absl::OkStatus();
    });
  }));
}

}  // namespace
}  // namespace fsdp
