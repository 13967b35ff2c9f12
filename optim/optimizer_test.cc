// SPDX-License-Identifier: Apache-2.0
//
// AdamW and SGD against PyTorch's single-tensor formulas written out in float32, equal in every bit on every
// device and instruction set; and what an Optimizer does around them.
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nn/test_device.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "tensor/convert.h"
#include "tensor/host_device.h"
#include "tensor/ops.h"
#include "tensor/work_graph.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Floats = std::vector<float>;

Floats Random(size_t n, int seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Floats values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

// To or from the device.
void Copy(void* to, const void* from, int64_t nbytes) {
  const std::unique_ptr<Stream> stream = *TestDevice()->CreateStream("copy");
  stream->CopyAsync(to, from, nbytes);
  ASSERT_OK(stream->Synchronize());
}

void Set(const Tensor& t, const Floats& values) { Copy(t.data(), values.data(), t.nbytes()); }

Floats Get(const Tensor& t) {
  Floats values(t.numel());
  Copy(values.data(), t.data(), t.nbytes());
  return values;
}

// A slice of a parameter, `offset` elements into its memory.
std::unique_ptr<ShardedParameter> MakeParameter(Device& device, const std::string& fqn, int64_t numel, int64_t offset,
                                                DType grad_dtype = DType::kFloat32) {
  auto parameter = std::make_unique<ShardedParameter>();
  parameter->fqn = fqn;
  parameter->shape = {numel + 9};
  parameter->interval = {4, 4 + numel};
  parameter->data = Tensor::Empty(device, DType::kFloat32, {numel + offset})->Slice({offset, numel + offset});
  parameter->grad = Tensor::Empty(device, grad_dtype, {numel + offset})->Slice({offset, numel + offset});
  parameter->device = &device;
  parameter->has_grad = true;
  return parameter;
}

void SetGrad(const ShardedParameter& parameter, const Floats& values) {
  std::vector<std::byte> bytes(parameter.grad.nbytes());
  ASSERT_OK(Convert(DType::kFloat32, values.data(), parameter.grad.dtype(), bytes.data(), parameter.grad.numel()));
  Copy(parameter.grad.data(), bytes.data(), parameter.grad.nbytes());
}

Floats GradOf(const ShardedParameter& parameter) {
  Floats values(parameter.grad.numel());
  std::vector<std::byte> bytes(parameter.grad.nbytes());
  Copy(bytes.data(), parameter.grad.data(), parameter.grad.nbytes());
  EXPECT_OK(Convert(parameter.grad.dtype(), bytes.data(), DType::kFloat32, values.data(), parameter.grad.numel()));
  return values;
}

void ExpectSameBits(const Tensor& t, const Floats& expected) {
  ASSERT_EQ(t.numel(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(std::memcmp(Get(t).data(), expected.data(), t.nbytes()), 0);
}

// torch/optim/adamw.py, _single_tensor_adamw, on float32 tensors with Python's float64 scalars; but the decay is part
// of the one sum that p is rounded in.
struct TorchAdamW {
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

// torch/optim/sgd.py, _single_tensor_sgd.
struct TorchSgd {
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

class OptimizerTest : public testing::Test {
 protected:
  const std::shared_ptr<Device> device_ = TestDevice();
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_F(OptimizerTest, AdamWHasTheLoopsBits) {
  const AdamWOptions variants[] = {
      {}, {.lr = 0.1, .beta1 = 0.3, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.2}, {.lr = 3e-4, .weight_decay = 0}};
  for (const AdamWOptions& options : variants) {
    for (const DType grad_dtype : {DType::kFloat32, DType::kBFloat16}) {
      ForEachInstructionSet([&] {
        const auto parameter = MakeParameter(*device_, "w", 75, 3, grad_dtype);
        TorchAdamW torch = {options, Random(75, 1), Floats(75, 0.0f), Floats(75, 0.0f)};
        Set(parameter->data, torch.p);
        AdamW optimizer({parameter.get()}, options);
        for (int step = 0; step < 4; ++step) {
          SetGrad(*parameter, Random(75, 10 + step));
          torch.Step(GradOf(*parameter));
          ASSERT_OK(optimizer.Step(*stream_));
          ASSERT_OK(stream_->Synchronize());
        }
        ExpectSameBits(parameter->data, torch.p);
        ExpectSameBits(*optimizer.State(0, "exp_avg"), torch.m);
        ExpectSameBits(*optimizer.State(0, "exp_avg_sq"), torch.v);
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
    for (const DType grad_dtype : {DType::kFloat32, DType::kBFloat16}) {
      ForEachInstructionSet([&] {
        const auto parameter = MakeParameter(*device_, "w", 75, 3, grad_dtype);
        TorchSgd torch = {options, Random(75, 1), {}};
        Set(parameter->data, torch.p);
        Sgd optimizer({parameter.get()}, options);
        for (int step = 0; step < 4; ++step) {
          SetGrad(*parameter, Random(75, 10 + step));
          torch.Step(GradOf(*parameter));
          ASSERT_OK(optimizer.Step(*stream_));
          ASSERT_OK(stream_->Synchronize());
        }
        ExpectSameBits(parameter->data, torch.p);
        if (options.momentum != 0) ExpectSameBits(*optimizer.State(0, "momentum_buffer"), torch.buffer);
      });
    }
  }
}

// Two slices with their copies, more elements than a block's, at an odd offset.
class OptimizerExtrasTest : public OptimizerTest {
 protected:
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(ShardedParameter*)>;

  static std::vector<MakeOptimizer> Optimizers() {
    return {[](ShardedParameter* p) { return std::make_unique<AdamW>(std::vector{p}, AdamWOptions{.lr = 0.1}); },
            [](ShardedParameter* p) {
              return std::make_unique<Sgd>(std::vector{p}, SgdOptions{.lr = 0.1, .momentum = 0.9});
            },
            [](ShardedParameter* p) { return std::make_unique<Sgd>(std::vector{p}, SgdOptions{.lr = 0.1}); }};
  }

  std::unique_ptr<ShardedParameter> Make(DType grad_dtype, int64_t numel = 5003) {
    auto parameter = MakeParameter(*device_, "w", numel, 3, grad_dtype);
    Set(parameter->data, Random(numel, 1));
    SetGrad(*parameter, Random(numel, 2));
    return parameter;
  }

  void AddCopy(ShardedParameter& parameter) {
    const int64_t numel = parameter.interval.size();
    parameter.compute_copy = Tensor::Empty(*device_, DType::kBFloat16, {numel + 3})->Slice({3, numel + 3});
    const std::vector<uint16_t> nans(numel, 0x7FC0);
    Copy(parameter.compute_copy.data(), nans.data(), parameter.compute_copy.nbytes());
  }

  Tensor Factor(float value) {
    const Tensor factor = *Tensor::Empty(*device_, DType::kFloat32, {1});
    Set(factor, {value});
    return factor;
  }

  // That the copy is the parameter, rounded.
  void ExpectCopyIsCurrent(const ShardedParameter& parameter) {
    EXPECT_TRUE(parameter.compute_copy_current);
    std::vector<uint16_t> want(parameter.interval.size()), got(parameter.interval.size());
    const Floats values = Get(parameter.data);
    ASSERT_OK(Convert(DType::kFloat32, values.data(), DType::kBFloat16, want.data(), parameter.interval.size()));
    Copy(got.data(), parameter.compute_copy.data(), parameter.compute_copy.nbytes());
    EXPECT_EQ(got, want);
  }
};

TEST_F(OptimizerExtrasTest, AFactorHasTheBitsOfScalingBefore) {
  for (const MakeOptimizer& make : Optimizers()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const auto folded = Make(dtype), scaled = Make(dtype);
      const std::unique_ptr<Optimizer> with = make(folded.get()), without = make(scaled.get());
      for (const float factor : {0.3f, 1.0f, 7e-5f}) {
        with->set_grad_factor(Factor(factor));
        ASSERT_OK(with->Step(*stream_));
        EXPECT_FALSE(with->has_grad_factor()) << "used once";
        device_->ops().ScaleBy(scaled->grad, Factor(factor), *stream_);
        ASSERT_OK(without->Step(*stream_));
        ASSERT_OK(stream_->Synchronize());
        SetGrad(*scaled, Random(5003, 2));
      }
      ExpectSameBits(folded->data, Get(scaled->data));
      EXPECT_EQ(GradOf(*folded), GradOf(*scaled)) << "gradients stay";
    }
  }
}

TEST_F(OptimizerExtrasTest, AFactorThatIsNotFiniteChangesNothing) {
  for (const MakeOptimizer& make : Optimizers()) {
    for (const float factor : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      const auto parameter = Make(DType::kFloat32);
      AddCopy(*parameter);
      const std::unique_ptr<Optimizer> optimizer = make(parameter.get());
      optimizer->set_grad_factor(Factor(factor));
      ASSERT_OK(optimizer->Step(*stream_));
      ASSERT_OK(stream_->Synchronize());
      ExpectSameBits(parameter->data, Random(5003, 1));
      ExpectCopyIsCurrent(*parameter);
      for (const std::string& name : optimizer->StateNames()) {
        ExpectSameBits(*optimizer->State(0, name), Floats(5003, 0.0f));
      }
    }
  }
}

TEST_F(OptimizerExtrasTest, TheCopyIsTheNewParameterRounded) {
  for (const MakeOptimizer& make : Optimizers()) {
    for (const int64_t numel : {0, 1, 4, 75, 5003}) {
      const auto copied = Make(DType::kBFloat16, numel), plain = Make(DType::kBFloat16, numel);
      AddCopy(*copied);
      const std::unique_ptr<Optimizer> with = make(copied.get()), without = make(plain.get());
      for (Optimizer* optimizer : {with.get(), without.get()}) ASSERT_OK(optimizer->Step(*stream_));
      ASSERT_OK(stream_->Synchronize());
      ExpectSameBits(copied->data, Get(plain->data));
      ExpectCopyIsCurrent(*copied);
      EXPECT_FALSE(plain->compute_copy_current);
    }
  }
}

// What a captured step reads is there before each replay, whatever the host's numbers were when it was captured.
TEST_F(OptimizerExtrasTest, ReplayedStepsHaveTheBitsOfSteps) {
  if (device_->type() == DeviceType::kCpu) GTEST_SKIP() << "the host has no graphs of work";
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto replayed = Make(dtype), stepped = Make(dtype);
    AdamW with({replayed.get()}, {.weight_decay = 0.3}), without({stepped.get()}, {.weight_decay = 0.3});
    const Tensor factor = Factor(0);
    std::unique_ptr<WorkGraph> graph;
    for (const double lr : {1e-2, 3e-3, 7e-2, 1e-4}) {
      for (AdamW* optimizer : {&with, &without}) ASSERT_OK(optimizer->SetHyperparameter("lr", lr));
      Set(factor, {static_cast<float>(lr)});
      without.set_grad_factor(factor);
      ASSERT_OK(without.Step(*stream_));
      if (with.step_count(0) == 0) {  // makes the state
        with.set_grad_factor(factor);
        ASSERT_OK(with.Step(*stream_));
        ASSERT_OK(stream_->Synchronize());
        continue;
      }
      ASSERT_OK(with.UploadScalars(*stream_));
      if (graph == nullptr) {
        ASSERT_OK(with.SetHyperparameter("lr", 100.0));  // is not what the graph has
        with.set_grad_factor(factor);
        ASSERT_OK_AND_ASSIGN(graph, CaptureWork(*stream_, [&] { return with.Step(*stream_); }));
      } else {
        with.CountReplay();
      }
      graph->Replay();
      ASSERT_OK(stream_->Synchronize());
      ExpectSameBits(replayed->data, Get(stepped->data));
    }
    EXPECT_EQ(with.step_count(0), 4);
  }
}

TEST_F(OptimizerExtrasTest, ACapturedStepWantsItsScalarsUploaded) {
  if (device_->type() == DeviceType::kCpu) GTEST_SKIP() << "the host has no graphs of work";
  const auto parameter = Make(DType::kFloat32, 5);
  AdamW optimizer({parameter.get()}, {});
  EXPECT_THAT(CaptureWork(*stream_, [&] { return optimizer.Step(*stream_); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("captured before UploadScalars was called")));
}

TEST_F(OptimizerExtrasTest, AReplayedStepIsCounted) {
  const auto parameter = Make(DType::kFloat32, 5), still = Make(DType::kFloat32, 5);
  still->has_grad = false;
  AdamW optimizer({parameter.get(), still.get()}, {});
  ASSERT_OK(optimizer.Step(*stream_));
  optimizer.ZeroGrad();
  optimizer.CountReplay();
  EXPECT_EQ(optimizer.step_count(0), 2);
  EXPECT_EQ(optimizer.step_count(1), 0);
  ASSERT_OK(stream_->Synchronize());
}

TEST_F(OptimizerExtrasTest, SgdsStepsCannotBeCaptured) {
  const auto parameter = Make(DType::kFloat32, 5);
  Sgd optimizer({parameter.get()}, {});
  EXPECT_THAT(optimizer.UploadScalars(*stream_),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("steps cannot be captured")));
}

TEST_F(OptimizerExtrasTest, WrongFactorsAndCopiesAreRefused) {
  const auto parameter = Make(DType::kFloat32, 5);
  AdamW optimizer({parameter.get()}, {});
  optimizer.set_grad_factor(*Tensor::Empty(*device_, DType::kFloat32, {2}));
  EXPECT_THAT(optimizer.Step(*stream_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("grad_factor is float32 [2], wanted one")));
  optimizer.set_grad_factor(Tensor());
  parameter->compute_copy = *Tensor::Empty(*device_, DType::kFloat16, {5});
  EXPECT_THAT(optimizer.Step(*stream_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter \"w\": compute_copy is float16 [5], wanted bfloat16")));
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
  TorchAdamW torch = {{}, Random(33, 1), Random(33, 2), Floats(33, 0.5f), /*step=*/7};
  Set(parameter->data, torch.p);
  AdamW optimizer({parameter.get()}, {});
  EXPECT_FALSE(optimizer.State(0, "exp_avg")->defined());
  Set(*optimizer.State(0, "exp_avg", /*create=*/true), torch.m);
  Set(*optimizer.State(0, "exp_avg_sq", /*create=*/true), torch.v);
  optimizer.set_step_count(0, 7);
  SetGrad(*parameter, Random(33, 3));
  torch.Step(GradOf(*parameter));
  ASSERT_OK(optimizer.Step(*stream_));
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBits(parameter->data, torch.p);
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
  EXPECT_THAT(AdamW({parameter.get()}, {}).StateNames(), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(Sgd({parameter.get()}, {.momentum = 0.9}).StateNames(), ElementsAre("momentum_buffer"));
  EXPECT_THAT(Sgd({parameter.get()}, {}).StateNames(), IsEmpty());
  AdamW optimizer({parameter.get()}, {});
  EXPECT_THAT(optimizer.State(0, "momentum_buffer"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter \"w\" has no optimizer state \"momentum_buffer\"")));
}

TEST_F(OptimizerTest, WrongDtypesNameTheParameter) {
  const auto parameter = MakeParameter(*device_, "w", 5, 0, DType::kFloat16);
  AdamW optimizer({parameter.get()}, {});
  EXPECT_THAT(optimizer.Step(*stream_), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("parameter \"w\": data float32 and grad float16")));
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

// Parameters that are kept on the host, and a step that goes on with the GPU's work.
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
