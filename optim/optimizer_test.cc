// SPDX-License-Identifier: Apache-2.0
//
// AdamW and SGD against their formulas written out in float32, equal in every bit on every device and instruction set;
// and the bookkeeping of Optimizer. torch_steps_test.cc compares with PyTorch itself.
#include "fsdp/optim/optimizer.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// torch/optim/adamw.py, _single_tensor_adamw, on float32 tensors with Python's float64 scalars; but the decay is part
// of the one sum that p is rounded in, and no product is fused with a sum.
struct PlainAdamW {
  AdamWOptions options;
  Floats p, m, v;
  int step = 0;

  void Step(const Floats& grad) {
    ++step;
    const double bias_correction1 = 1 - std::pow(options.beta1, step),
                 bias_correction2 = 1 - std::pow(options.beta2, step);
    const auto minus_decay = static_cast<float>(-(options.lr * options.weight_decay));
    const auto weight = static_cast<float>(1 - options.beta1), beta2 = static_cast<float>(options.beta2);
    const auto value = static_cast<float>(1 - options.beta2);
    const auto minus_step_size = static_cast<float>(-(options.lr / bias_correction1));
    const auto root = static_cast<float>(std::sqrt(bias_correction2)), eps = static_cast<float>(options.eps);
    for (size_t i = 0; i < p.size(); ++i) {
      const float difference = grad[i] - m[i];
      m[i] = weight < 0.5f ? m[i] + weight * difference : grad[i] - difference * (1 - weight);
      v[i] = v[i] * beta2;
      v[i] = v[i] + value * grad[i] * grad[i];
      const float denominator = std::sqrt(v[i]) / root + eps;
      p[i] = p[i] + (minus_step_size * m[i] / denominator + minus_decay * p[i]);
    }
  }
};

// torch/optim/sgd.py, _single_tensor_sgd; no product is fused with a sum.
struct PlainSgd {
  SgdOptions options;
  Floats p, buffer;

  void Step(Floats grad) {
    const bool first = buffer.empty();
    if (first) buffer.resize(p.size());
    const auto weight_decay = static_cast<float>(options.weight_decay), momentum = static_cast<float>(options.momentum);
    const auto one_minus_dampening = static_cast<float>(1 - options.dampening),
               minus_lr = static_cast<float>(-options.lr);
    for (size_t i = 0; i < p.size(); ++i) {
      float g = grad[i];
      if (weight_decay != 0) g = g + weight_decay * p[i];
      if (momentum != 0) {
        buffer[i] = first ? g : buffer[i] * momentum + one_minus_dampening * g;
        g = options.nesterov ? g + momentum * buffer[i] : buffer[i];
      }
      p[i] = p[i] + minus_lr * g;
    }
  }
};

using OptimizerTest = OptimizerFixture;

TEST_F(OptimizerTest, AdamWHasTheLoopsBits) {
  const AdamWOptions variants[] = {
      {}, {.lr = 0.1, .beta1 = 0.3, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.2}, {.lr = 3e-4, .weight_decay = 0}};
  for (const AdamWOptions& options : variants) {
    for (const DType grad_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      ForEachInstructionSet([&] {
        const auto parameter = MakeParameter(*device_, "w", 75, 3, grad_dtype);
        PlainAdamW plain = {options, Random(75, 1), Floats(75, 0.0f), Floats(75, 0.0f)};
        Set(parameter->data, plain.p);
        AdamW optimizer({parameter.get()}, options);
        for (int step = 0; step < 4; ++step) {
          SetGrad(*parameter, Random(75, 10 + step));
          plain.Step(GradOf(*parameter));
          ASSERT_OK(optimizer.Step(*stream_));
          ASSERT_OK(stream_->Synchronize());
        }
        ExpectSameBits(parameter->data, plain.p);
        ExpectSameBits(*optimizer.State(0, "exp_avg"), plain.m);
        ExpectSameBits(*optimizer.State(0, "exp_avg_sq"), plain.v);
      });
    }
  }
}

TEST_F(OptimizerTest, SgdHasTheLoopsBits) {
  const SgdOptions variants[] = {{.lr = 0.1},
                                 {.lr = 0.1, .momentum = 0.9},
                                 {.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.01},
                                 {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}};
  for (const SgdOptions& options : variants) {
    for (const DType grad_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      ForEachInstructionSet([&] {
        const auto parameter = MakeParameter(*device_, "w", 75, 3, grad_dtype);
        PlainSgd plain = {options, Random(75, 1), {}};
        Set(parameter->data, plain.p);
        Sgd optimizer({parameter.get()}, options);
        for (int step = 0; step < 4; ++step) {
          SetGrad(*parameter, Random(75, 10 + step));
          plain.Step(GradOf(*parameter));
          ASSERT_OK(optimizer.Step(*stream_));
          ASSERT_OK(stream_->Synchronize());
        }
        ExpectSameBits(parameter->data, plain.p);
        if (options.momentum != 0) ExpectSameBits(*optimizer.State(0, "momentum_buffer"), plain.buffer);
      });
    }
  }
}

TEST_F(OptimizerTest, DecayFollowsTheOriginalShape) {
  const auto matrix = MakeParameter(*device_, "matrix", 6, 0), bias = MakeParameter(*device_, "bias", 6, 0);
  matrix->shape = {3, 5};
  ShardedParameter* both[] = {bias.get(), matrix.get()};
  AdamW optimizer(AdamW::DecayMatricesOnly(both, {.weight_decay = 0.3}));
  const std::vector<ParamGroupState> groups = optimizer.ParamGroups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_THAT(groups[0].params, ElementsAre("matrix"));
  EXPECT_THAT(groups[1].params, ElementsAre("bias"));
  EXPECT_THAT(groups[0].values.back(), testing::Pair("weight_decay", 0.3));
  EXPECT_THAT(groups[1].values.back(), testing::Pair("weight_decay", 0.0));
}

TEST_F(OptimizerTest, ParametersWithoutGradientDoNotMove) {
  const auto moved = MakeParameter(*device_, "moved", 5, 0), still = MakeParameter(*device_, "still", 5, 1);
  for (const auto* parameter : {moved.get(), still.get()}) {
    Set(parameter->data, Floats(5, 1.0f));
    SetGrad(*parameter, Floats(5, 1.0f));
  }
  AdamW optimizer({moved.get(), still.get()}, {});
  optimizer.ZeroGrad();
  moved->has_grad = true;
  ASSERT_OK(optimizer.Step(*stream_));
  ASSERT_OK(stream_->Synchronize());
  EXPECT_NE(Get(moved->data)[0], 1);
  ExpectSameBits(still->data, Floats(5, 1.0f));
  EXPECT_EQ(optimizer.step_count(0), 1);
  EXPECT_EQ(optimizer.step_count(1), 0);
  EXPECT_FALSE(optimizer.State(1, "exp_avg")->defined());
}

// Loading makes the state exist before the first step, which must then use it.
TEST_F(OptimizerTest, LoadedStateContinuesTheRun) {
  const auto parameter = MakeParameter(*device_, "w", 33, 1);
  PlainAdamW plain = {{}, Random(33, 1), Random(33, 2), Floats(33, 0.5f), /*step=*/7};
  Set(parameter->data, plain.p);
  AdamW optimizer({parameter.get()}, {});
  EXPECT_FALSE(optimizer.State(0, "exp_avg")->defined());
  Set(*optimizer.State(0, "exp_avg", /*create=*/true), plain.m);
  Set(*optimizer.State(0, "exp_avg_sq", /*create=*/true), plain.v);
  optimizer.set_step_count(0, 7);
  SetGrad(*parameter, Random(33, 3));
  plain.Step(GradOf(*parameter));
  ASSERT_OK(optimizer.Step(*stream_));
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBits(parameter->data, plain.p);
}

TEST_F(OptimizerTest, StateIsAllocatedOnceAndCountedByTheDevice) {
  const auto a = MakeParameter(*device_, "a", 1000, 0), b = MakeParameter(*device_, "b", 3000, 0);
  for (const auto* parameter : {a.get(), b.get()}) {
    device_->ops().Zero(parameter->data, *stream_);
    device_->ops().Zero(parameter->grad, *stream_);
  }
  const int64_t before = device_->allocated_bytes();
  AdamW optimizer({a.get(), b.get()}, {});
  EXPECT_EQ(device_->allocated_bytes(), before);
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK(optimizer.Step(*stream_));
    ASSERT_OK(stream_->Synchronize());
    EXPECT_GE(device_->allocated_bytes() - before, 2 * 4000 * 4);
    EXPECT_LE(device_->allocated_bytes() - before, 2 * 4000 * 4 + 256);
  }
}

TEST_F(OptimizerTest, EmptySliceIsLegal) {
  const auto parameter = MakeParameter(*device_, "empty", 0, 0);
  AdamW optimizer({parameter.get()}, {});
  EXPECT_OK(optimizer.Step(*stream_));
  EXPECT_OK(stream_->Synchronize());
  EXPECT_EQ(optimizer.State(0, "exp_avg")->numel(), 0);
}

TEST_F(OptimizerTest, HyperparametersAreSetByName) {
  const auto parameter = MakeParameter(*device_, "w", 5, 0);
  AdamW adamw({parameter.get()}, {});
  EXPECT_OK(adamw.SetHyperparameter("lr", 0.25));
  EXPECT_THAT(adamw.ParamGroups()[0].values.front(), testing::Pair("lr", 0.25));
  EXPECT_THAT(adamw.SetHyperparameter("momentum", 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("AdamW has no hyperparameter \"momentum\"")));
  Sgd sgd({parameter.get()}, {});
  EXPECT_OK(sgd.SetHyperparameter("lr", 0.25));
  EXPECT_THAT(sgd.SetHyperparameter("momentum", 0.9),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("made without momentum")));
}

TEST_F(OptimizerTest, HyperparametersOfOneGroupLeaveTheOthers) {
  const auto a = MakeParameter(*device_, "a", 5, 0);
  const auto b = MakeParameter(*device_, "b", 5, 0);
  Sgd sgd({{{a.get()}, {.lr = 1}}, {{b.get()}, {.lr = 2, .momentum = 0.5, .nesterov = true}}});
  EXPECT_OK(sgd.SetGroupHyperparameter(1, "lr", 0.25));
  EXPECT_OK(sgd.SetGroupHyperparameter(1, "nesterov", 0));
  EXPECT_THAT(sgd.ParamGroups()[0].values.front(), testing::Pair("lr", 1));
  EXPECT_THAT(sgd.ParamGroups()[1].values.front(), testing::Pair("lr", 0.25));
  EXPECT_THAT(sgd.ParamGroups()[1].values.back(), testing::Pair("nesterov", 0));
}

TEST_F(OptimizerTest, StateNamesAreTorchs) {
  const auto parameter = MakeParameter(*device_, "w", 5, 0);
  EXPECT_THAT(AdamW({parameter.get()}, {}).state_names(), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(Sgd({parameter.get()}, {.momentum = 0.9}).state_names(), ElementsAre("momentum_buffer"));
  EXPECT_THAT(Sgd({parameter.get()}, {}).state_names(), IsEmpty());
  AdamW optimizer({parameter.get()}, {});
  EXPECT_THAT(optimizer.State(0, "momentum_buffer"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter \"w\" has no optimizer state \"momentum_buffer\"")));
}

TEST_F(OptimizerTest, WrongDtypesNameTheParameter) {
  const auto parameter = MakeParameter(*device_, "w", 5, 0, DType::kFloat64);
  AdamW optimizer({parameter.get()}, {});
  EXPECT_THAT(optimizer.Step(*stream_), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("parameter \"w\": data float32 and grad float64")));
  EXPECT_EQ(optimizer.step_count(0), 0);
}

TEST_F(OptimizerTest, AHostStreamCannotUpdateAGpusParameters) {
  if (device_->type() == DeviceType::kCpu) GTEST_SKIP() << "every stream can update the host's";
  const std::shared_ptr<Device> host = CreateHostDevice();
  const std::unique_ptr<Stream> stream = *host->CreateStream("host");
  const auto parameter = MakeParameter(*device_, "w", 5, 0);
  AdamW optimizer({parameter.get()}, {});
  EXPECT_THAT(optimizer.Step(*stream),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter \"w\" is on cuda:0: its update cannot run on stream \"host\" of cpu")));
  EXPECT_EQ(optimizer.step_count(0), 0);
}

TEST_F(OptimizerTest, ParametersOnTwoKindsOfDevicesAreRefused) {
  if (device_->type() == DeviceType::kCpu) GTEST_SKIP() << "one kind only";
  const std::shared_ptr<Device> host = CreateHostDevice();
  const auto a = MakeParameter(*device_, "a", 5, 0), b = MakeParameter(*host, "b", 5, 0);
  AdamW optimizer({a.get(), b.get()}, {});
  EXPECT_THAT(optimizer.Step(*stream_), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("parameter \"b\" is on cpu, but \"a\" on cuda:0")));
}

// Parameters that are kept on the host, and a step that continues with the GPU's work.
TEST_F(OptimizerTest, AnyStreamUpdatesTheHostsParameters) {
  const std::shared_ptr<Device> host = CreateHostDevice();
  const auto parameter = MakeParameter(*host, "w", 5, 0);
  std::fill_n(parameter->data.data_as<float>(), 5, 1.0f);
  std::fill_n(parameter->grad.data_as<float>(), 5, 1.0f);
  Sgd optimizer({parameter.get()}, {.lr = 0.25});
  ASSERT_OK(optimizer.Step(*stream_));
  ASSERT_OK(stream_->Synchronize());
  EXPECT_EQ(parameter->data.data_as<float>()[4], 0.75f);
}

TEST_F(OptimizerTest, NesterovWantsMomentum) {
  const auto parameter = MakeParameter(*device_, "w", 5, 0);
  EXPECT_THAT(Sgd({parameter.get()}, {.nesterov = true}).Step(*stream_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nesterov wants momentum")));
}

}  // namespace
}  // namespace fsdp
