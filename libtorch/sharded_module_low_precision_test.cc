// SPDX-License-Identifier: Apache-2.0
//
// bfloat16 and float16 of sharded modules of LibTorch, as the dtype of their parameters or only of compute: the bits of
// plain LibTorch, under both APIs. Every rank has all rows, so the mean over 2^n ranks is each rank's own gradient.
#include <torch/nn.h>
#include <torch/optim.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/tensor_bridge.h"
#include "fsdp/libtorch/torch_optimizer.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "fsdp/optim/adamw.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace optim = torch::optim;

// LargestDifference does not compare dtypes.
void ExpectSameBits(const TorchValues& wanted, const TorchValues& values) {
  ASSERT_EQ(values.size(), wanted.size());
  for (const auto& [name, value] : wanted) {
    const auto found = values.find(name);
    ASSERT_NE(found, values.end()) << name;
    EXPECT_EQ(found->second.scalar_type(), value.scalar_type()) << name;
    EXPECT_TRUE(at::equal(found->second, value)) << name;
  }
}

TorchValues ValuesOf(const TestModel& model) {
  TorchValues values;
  for (const auto& item : model.module->named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : model.module->named_buffers()) values[item.key()] = item.value().detach().clone();
  return values;
}

// Two layers of 128 x 128. On two ranks each slice has a multiple of 64 elements under both APIs: LibTorch's kernels of
// 16 bits compute in vectors, and round the last elements of a tensor in another way.
TestModel MakeEvenModel(at::ScalarType type) {
  const auto normal = [type](int seed, at::IntArrayRef sizes) {
    return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).mul(0.1).to(type);
  };
  auto net = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(128, 128), torch::nn::GELU(),
                                                         torch::nn::Linear(128, 128));
  net->to(type);
  int seed = 0;
  at::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) parameter.copy_(normal(++seed, parameter.sizes()));
  return {.module = net,
          .script = nullptr,
          .forward = [net](const at::Tensor& x) { return net->forward(x); },
          .input =
              [normal](int step) {
                return normal(100 + step, {8, 128});
              },
          .unit_types = {"Linear"}};
}

// Large enough for gradients that stay normal numbers of float16 if they are divided by the square root of the ranks.
at::Tensor LossOf(const at::Tensor& output, float scale = 256) { return output.to(at::kFloat).square().mean() * scale; }

// An update that gives an element the same bits at any place in a tensor. LibTorch's kernels of 16 bits do not.
void Update(const std::vector<at::Tensor>& tensors) {
  at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.grad().defined()) continue;
    at::Tensor(tensor).copy_(tensor.to(at::kFloat).sub(tensor.grad().to(at::kFloat).mul(2e-4f)));
    tensor.mutable_grad() = at::Tensor();
  }
}

// By dtype, and whether the API is FSDP2.
class LowPrecisionModuleTest : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool>> {
 protected:
  static at::ScalarType type() { return std::get<0>(GetParam()); }
  static TestSharding sharding() { return {.use_fsdp2 = std::get<1>(GetParam())}; }

  // AdamW's second moments are too small for float16, in which its eps of 1e-8 is 0.
  static std::unique_ptr<optim::Optimizer> MakeOptimizer(const std::vector<at::Tensor>& tensors) {
    if (type() == at::kBFloat16) return std::make_unique<optim::AdamW>(tensors, optim::AdamWOptions(1e-2));
    return std::make_unique<optim::SGD>(tensors, optim::SGDOptions(1e-3).momentum(0.9));
  }
};

TEST_P(LowPrecisionModuleTest, ParametersOfItTrainAsInPlainLibTorch) {
  constexpr int kSteps = 3;
  for (const std::string name : {"mlp", "tied_transformer", "transformer_encoder", "conv_net"}) {
    at::set_num_threads(1);
    const float scale = name == "tied_transformer" ? 4 : 256;  // its outputs are large
    const TestModel plain = MakeTestModel(name, at::kCPU, type());
    for (int step = 0; step < kSteps; ++step) {
      LossOf(plain.forward(plain.input(step)), scale).backward();
      Update(plain.parameters());
    }
    EXPECT_FALSE(at::equal(plain.parameters()[0], MakeTestModel(name, at::kCPU, type()).parameters()[0])) << name;
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << name << " on " << ranks);
      ASSERT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        at::set_num_threads(1);
        const TestModel model = MakeTestModel(name, at::kCPU, type());
        FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, sharding()));
        FSDP_RETURN_IF_ERROR(Caught([&] {
          for (int step = 0; step < kSteps; ++step) {
            LossOf(sharded->Forward(model.forward, model.input(step)), scale).backward();
            Update(sharded->LocalParameters());
          }
          return absl::OkStatus();
        }));
        FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*sharded));
        ExpectSameBits(ValuesOf(plain), values);
        return absl::OkStatus();
      }));
    }
  }
}

// The optimizer's state has the dtype too, also in a state dict, from which the other API continues.
TEST_P(LowPrecisionModuleTest, OptimizersOfLibTorchTakeThePlainStepsAndContinueThem) {
  at::set_num_threads(1);
  const TestModel plain = MakeEvenModel(type());
  const auto plain_optimizer = MakeOptimizer(plain.parameters());
  for (int step = 0; step < 3; ++step) {
    plain_optimizer->zero_grad();
    LossOf(plain.forward(plain.input(step))).backward();
    plain_optimizer->step();
  }
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    at::set_num_threads(1);
    StateDict state;
    for (const bool is_continued : {false, true}) {
      const TestModel model = MakeEvenModel(type());
      const TestSharding api = {.use_fsdp2 = sharding().use_fsdp2 != is_continued};
      FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, api));
      FSDP_ASSIGN_OR_RETURN(const auto optimizer,
                            TorchOptimizer::Create(*sharded, MakeOptimizer(sharded->LocalParameters())));
      if (is_continued) {
        FSDP_RETURN_IF_ERROR(sharded->fsdp().LoadStateDict(state));
        FSDP_RETURN_IF_ERROR(sharded->fsdp().LoadOptimStateDict(state, *optimizer));
      }
      for (int step = is_continued ? 2 : 0; step < 3; ++step) {
        if (step == 2 && !is_continued) {
          FSDP_ASSIGN_OR_RETURN(state, sharded->fsdp().GetStateDict());
          FSDP_RETURN_IF_ERROR(sharded->fsdp().AddOptimStateDict(*optimizer, state));
        }
        FSDP_RETURN_IF_ERROR(Caught([&]() -> absl::Status {
          LossOf(sharded->Forward(model.forward, model.input(step))).backward();
          FSDP_RETURN_IF_ERROR(optimizer->Step(sharded->stream()));
          optimizer->ZeroGrad();
          return absl::OkStatus();
        }));
      }
      FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*sharded));
      ExpectSameBits(ValuesOf(plain), values);
    }
    FSDP_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(type()));
    int states = 0;
    for (const auto& [key, value] : state.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr || key.state == "step") continue;
      EXPECT_EQ(tensor->dtype, dtype) << key.ToString();
      states += key.section == StateKey::Section::kOptimState;
    }
    EXPECT_GT(states, 0);
    return absl::OkStatus();
  }));
}

// This project's optimizers round an update once, as LibTorch's do not; so ranks are compared with one rank.
TEST_P(LowPrecisionModuleTest, OurAdamWTrainsItOnAnyNumberOfRanks) {
  TorchValues first;
  for (const int ranks : {1, 2, 4}) {
    ASSERT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      at::set_num_threads(1);
      const TestModel model = MakeTestModel("mlp", at::kCPU, type());
      FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, sharding()));
      AdamW optimizer(sharded->parameters(), {.lr = 1e-2, .eps = 1e-3});
      FSDP_RETURN_IF_ERROR(Caught([&]() -> absl::Status {
        for (int step = 0; step < 3; ++step) {
          LossOf(sharded->Forward(model.forward, model.input(step))).backward();
          FSDP_RETURN_IF_ERROR(optimizer.Step(sharded->stream()));
          optimizer.ZeroGrad();
        }
        return absl::OkStatus();
      }));
      FSDP_ASSIGN_OR_RETURN(TorchValues values, FullValues(*sharded));
      if (group->size() == 1) {
        const TorchValues before = ValuesOf(MakeTestModel("mlp", at::kCPU, type()));
        EXPECT_FALSE(at::equal(values.at("layers.0.weight"), before.at("layers.0.weight")));
        first = std::move(values);
      } else {
        ExpectSameBits(first, values);
      }
      return absl::OkStatus();
    }));
  }
}

// The first scale overflows float16, so that step is left out and the scale falls.
TEST_P(LowPrecisionModuleTest, AGradScalerTakesTheStepsThatAProgramWouldTake) {
  constexpr int kSteps = 4;
  const GradScalerOptions options{.init_scale = 0x1p30, .backoff_factor = 0x1p-20};
  at::set_num_threads(1);
  const TestModel plain = MakeEvenModel(type());
  optim::SGD plain_optimizer(plain.parameters(), optim::SGDOptions(1e-2).momentum(0.9));
  auto scale = static_cast<float>(options.init_scale);
  int skipped = 0;
  for (int step = 0; step < kSteps; ++step) {
    plain_optimizer.zero_grad();
    LossOf(plain.forward(plain.input(step)), scale).backward();
    bool finite = true;
    for (const at::Tensor& p : plain.parameters()) {
      finite = finite && at::isfinite(p.grad()).all().item<bool>();
      p.mutable_grad() = p.grad().mul(1 / scale);
    }
    if (finite) {
      plain_optimizer.step();
    } else {
      scale *= static_cast<float>(options.backoff_factor);
      ++skipped;
    }
  }
  EXPECT_EQ(skipped, type() == at::kHalf ? 1 : 0);

  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    at::set_num_threads(1);
    const TestModel model = MakeEvenModel(type());
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, sharding()));
    FSDP_ASSIGN_OR_RETURN(
        const auto optimizer,
        TorchOptimizer::Create(
            *sharded, std::make_unique<optim::SGD>(sharded->LocalParameters(), optim::SGDOptions(1e-2).momentum(0.9))));
    ShardedGradScaler scaler(*group, options);
    FSDP_RETURN_IF_ERROR(Caught([&]() -> absl::Status {
      for (int step = 0; step < kSteps; ++step) {
        LossOf(sharded->Forward(model.forward, model.input(step)), scaler.scale()).backward();
        FSDP_RETURN_IF_ERROR(scaler.Step(*optimizer, sharded->stream()).status());
        FSDP_RETURN_IF_ERROR(scaler.Update());
        optimizer->ZeroGrad();
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(scaler.scale(), scale);
    FSDP_ASSIGN_OR_RETURN(const TorchValues values, FullValues(*sharded));
    ExpectSameBits(ValuesOf(plain), values);
    return absl::OkStatus();
  }));
}

// The reference: the same model with its weights rounded before each step, and float32 gradients from backwards in 16
// bits, which is the meaning of mixed precision on one rank.
TEST_P(LowPrecisionModuleTest, MixedPrecisionHasTheBitsOfARoundedModel) {
  const auto dtype = DTypeOf(type());
  ASSERT_OK(dtype.status());
  TestSharding mixed = sharding();
  mixed.fsdp1.mixed_precision.param_dtype = mixed.fsdp2.mp_policy.param_dtype = *dtype;
  mixed.fsdp1.mixed_precision.reduce_dtype = mixed.fsdp2.mp_policy.reduce_dtype = DType::kFloat32;
  const TestTraining training{.steps = 3, .weight_decay = 0, .adamw = false};
  const auto trained = TrainOnThreads("mlp", 2, mixed, training);
  ASSERT_OK(trained.status());

  at::set_num_threads(1);
  const TestModel master = MakeTestModel("mlp"), low = MakeTestModel("mlp", at::kCPU, type());
  const std::vector<at::Tensor> weights = master.parameters(), rounded = low.parameters();
  optim::SGD optimizer(weights, optim::SGDOptions(training.lr).momentum(0.9));
  for (int step = 0; step < training.steps; ++step) {
    low.module->zero_grad();
    {
      at::NoGradGuard no_grad;
      for (size_t i = 0; i < weights.size(); ++i) rounded[i].copy_(weights[i]);
    }
    low.forward(low.input(step)).to(at::kFloat).square().mean().backward();
    for (size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = rounded[i].grad().to(at::kFloat);
    optimizer.step();
  }
  ExpectSameBits(ValuesOf(master), trained->values);
}

INSTANTIATE_TEST_SUITE_P(All, LowPrecisionModuleTest,
                         ::testing::Combine(::testing::Values(at::kBFloat16, at::kHalf), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(c10::toString(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "Fsdp2" : "Fsdp1");
                         });

}  // namespace
}  // namespace fsdp
