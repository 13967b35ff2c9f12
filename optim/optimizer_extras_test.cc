// SPDX-License-Identifier: Apache-2.0
//
// The additional work of a step, on every device: gradients scaled by a factor on the device, a bfloat16 copy of the
// new parameters, and steps that are captured and replayed.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/lion.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/work_graph.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// Two slices with their copies, more elements than a block has, at an odd offset.
class OptimizerExtrasTest : public OptimizerFixture {
 protected:
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(ShardedParameter*)>;

  static std::vector<MakeOptimizer> Optimizers() {
    std::vector<MakeOptimizer> all = {
        [](ShardedParameter* p) { return std::make_unique<AdamW>(std::vector{p}, AdamWOptions{.lr = 0.1}); },
        [](ShardedParameter* p) {
          return std::make_unique<Sgd>(std::vector{p}, SgdOptions{.lr = 0.1, .momentum = 0.9});
        },
        [](ShardedParameter* p) { return std::make_unique<Sgd>(std::vector{p}, SgdOptions{.lr = 0.1}); }};
    if (TestDevice()->type() != DeviceType::kCpu) return all;
    all.push_back([](ShardedParameter* p) { return std::make_unique<Lion>(std::vector{p}, LionOptions{.lr = 0.1}); });
    all.push_back([](ShardedParameter* p) {
      return std::make_unique<AdamW>(std::vector{p},
                                     AdamWOptions{.lr = 0.1, .amsgrad = true, .decoupled_weight_decay = false});
    });
    return all;
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

  // Expects the copy to be the parameter, rounded.
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
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const auto folded = Make(dtype), scaled = Make(dtype);
      const std::unique_ptr<Optimizer> with = make(folded.get()), without = make(scaled.get());
      for (const float factor : {0.3f, 1.0f, 7e-5f}) {
        with->set_grad_factor(Factor(factor));
        ASSERT_OK(with->Step(*stream_));
        EXPECT_FALSE(with->has_grad_factor()) << "used once";
        device_->ops().ScaleBy({scaled->grad}, Factor(factor), *stream_);
        ASSERT_OK(without->Step(*stream_));
        ASSERT_OK(stream_->Synchronize());
        SetGrad(*scaled, Random(5003, 2));
      }
      ExpectSameBits(folded->data, Get(scaled->data));
      EXPECT_EQ(GradOf(*folded), GradOf(*scaled)) << "gradients stay";
    }
  }
}

// As with gradients that were multiplied before: torch.nn.utils.clip_grad_norm_ makes them NaN or 0.
TEST_F(OptimizerExtrasTest, AFactorThatIsNotFiniteOr0IsAFactor) {
  const auto values_of = [](const Tensor& t) {  // NaNs differ in their bits
    std::vector<std::string> values;
    for (const float value : Get(t)) values.push_back(std::isnan(value) ? "nan" : std::to_string(value));
    return values;
  };
  for (const MakeOptimizer& make : Optimizers()) {
    for (const float factor : {std::nanf(""), HUGE_VALF, 0.0f}) {
      const auto folded = Make(DType::kFloat32), scaled = Make(DType::kFloat32);
      const std::unique_ptr<Optimizer> with = make(folded.get()), without = make(scaled.get());
      with->set_grad_factor(Factor(factor));
      ASSERT_OK(with->Step(*stream_));
      device_->ops().ScaleBy({scaled->grad}, Factor(factor), *stream_);
      ASSERT_OK(without->Step(*stream_));
      ASSERT_OK(stream_->Synchronize());
      EXPECT_EQ(values_of(folded->data), values_of(scaled->data)) << factor;
      for (const std::string& name : with->state_names()) {
        EXPECT_EQ(values_of(*with->State(0, name)), values_of(*without->State(0, name))) << factor;
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

// The copy for the next all-gather is still made: it may have been stale.
TEST_F(OptimizerExtrasTest, AStepThatFoundInfChangesNothingAndCanBeTakenBack) {
  for (const MakeOptimizer& make : Optimizers()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const auto skipped = Make(dtype), plain = Make(dtype);
      AddCopy(*skipped);
      const std::unique_ptr<Optimizer> with = make(skipped.get()), without = make(plain.get());
      for (int step = 0; step < 3; ++step) {
        SetGrad(*skipped, Floats(skipped->interval.size(), NAN));
        const Floats before = Get(skipped->data);
        with->set_found_inf(Factor(1));
        ASSERT_OK(with->Step(*stream_));
        ASSERT_OK(stream_->Synchronize());
        ExpectSameBits(skipped->data, before);
        ExpectCopyIsCurrent(*skipped);
        with->TakeBackStep();
        EXPECT_EQ(with->step_count(0), step);
        for (const std::string& name : with->state_names()) {
          EXPECT_EQ(with->State(0, name)->defined(), step > 0) << name;
        }
        // As if it had not been.
        SetGrad(*skipped, GradOf(*plain));
        with->set_found_inf(Factor(0));
        ASSERT_OK(with->Step(*stream_));
        ASSERT_OK(without->Step(*stream_));
        ASSERT_OK(stream_->Synchronize());
        ExpectSameBits(skipped->data, Get(plain->data));
        for (const std::string& name : with->state_names()) {
          ExpectSameBits(*with->State(0, name), Get(*without->State(0, name)));
        }
      }
    }
  }
}

TEST_F(OptimizerExtrasTest, FoundInfCountsForOneStep) {
  const auto parameter = Make(DType::kFloat32, 5);
  AdamW optimizer({parameter.get()}, {});
  const Floats before = Get(parameter->data);
  optimizer.set_found_inf(Factor(1));
  ASSERT_OK(optimizer.Step(*stream_));
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBits(parameter->data, before);
  ASSERT_OK(optimizer.Step(*stream_));
  ASSERT_OK(stream_->Synchronize());
  EXPECT_NE(Get(parameter->data), before);
}

// CopyScalarsToDevice renews the scalars of a captured step before each replay, whatever they were when it was
// captured.
TEST_F(OptimizerExtrasTest, ReplayedStepsHaveTheBitsOfSteps) {
  if (device_->type() == DeviceType::kCpu) GTEST_SKIP() << "the host has no graphs of work";
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
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
      ASSERT_OK(with.CopyScalarsToDevice(*stream_));
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
  EXPECT_THAT(
      CaptureWork(*stream_, [&] { return optimizer.Step(*stream_); }),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("captured before CopyScalarsToDevice was called")));
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
  optimizer.TakeBackStep();
  EXPECT_EQ(optimizer.step_count(0), 1);
  EXPECT_TRUE(optimizer.State(0, "exp_avg")->defined());  // the step that was taken back did not make it
  ASSERT_OK(stream_->Synchronize());
}

TEST_F(OptimizerExtrasTest, SgdsStepsCannotBeCaptured) {
  const auto parameter = Make(DType::kFloat32, 5);
  Sgd optimizer({parameter.get()}, {});
  EXPECT_THAT(optimizer.CopyScalarsToDevice(*stream_),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("steps cannot be captured")));
}

TEST_F(OptimizerExtrasTest, WrongFactorsAndCopiesAreRefused) {
  const auto parameter = Make(DType::kFloat32, 5);
  AdamW optimizer({parameter.get()}, {});
  optimizer.set_grad_factor(*Tensor::Empty(*device_, DType::kFloat32, {2}));
  EXPECT_THAT(optimizer.Step(*stream_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("grad_factor is float32 [2], wanted one")));
  optimizer.set_grad_factor(Tensor());
  optimizer.set_found_inf(*Tensor::Empty(*device_, DType::kBFloat16, {1}));
  EXPECT_THAT(optimizer.Step(*stream_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("found_inf is bfloat16 [1], wanted one")));
  optimizer.set_found_inf(Tensor());
  parameter->compute_copy = *Tensor::Empty(*device_, DType::kFloat16, {5});
  EXPECT_THAT(optimizer.Step(*stream_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter \"w\": compute_copy is float16 [5], wanted bfloat16")));
}

}  // namespace
}  // namespace fsdp
