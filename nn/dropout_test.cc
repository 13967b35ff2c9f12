// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/dropout.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "fsdp/base/random.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/sequential.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr float kP = 0.25f;

class DropoutTest : public testing::Test {
 protected:
  // The results of two Dropouts in a row, applied to ones and to the gradient 1: `samples` samples of 33 elements.
  struct Results {
    Doubles out, grad;
  };
  Results Run(const RandomState& state, bool recompute = false) {
    Sequential model(std::make_unique<Dropout>(kP), std::make_unique<Dropout>(kP));
    model.set_recompute(recompute);
    Tape tape(*stream_, *ops_);
    EXPECT_OK(tape.set_random_state(state));
    const Tensor ones = TestTensor(DType::kFloat32, {state.samples, 33}, Doubles(state.samples * 33, 1));
    const absl::StatusOr<Tensor> out = model.Forward(ones, tape);
    EXPECT_OK(out);
    const absl::StatusOr<Tensor> grad = model.Backward(ones, tape);
    EXPECT_OK(grad);
    EXPECT_OK(stream_->Synchronize());
    return {ValuesOf(*out), ValuesOf(*grad)};
  }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_F(DropoutTest, KeepsTheElementsWhoseNumbersAreAtLeastP) {
  std::vector<float> numbers(2000);
  for (const uint64_t first : {uint64_t{0}, uint64_t{4099}, uint64_t{1} << 33}) {
    FillUniform(Philox(7, 11), first, absl::MakeSpan(numbers));
    for (const DType dtype : ActivationDTypes()) {
      const Doubles x = RandomValues(dtype, 2000, 1);
      Doubles wanted(2000);
      for (int i = 0; i < 2000; ++i) wanted[i] = numbers[i] >= kP ? x[i] / (1 - kP) : 0;
      const Tensor out = NanTensor(dtype, {2000}, 1), in_place = TestTensor(dtype, {2000}, x, 3);
      const DropoutMask mask = {.seed = 7, .sequence = 11, .first = first, .p = kP};
      ops_->Dropout(TestTensor(dtype, {2000}, x, 3), mask, out, *stream_);
      ops_->Dropout(in_place, mask, in_place, *stream_);
      ASSERT_OK(stream_->Synchronize());
      ExpectClose(out, wanted, dtype == DType::kFloat32 ? 2e-7 : 1.0 / 256);
      ExpectSameBytes(out, in_place);
      EXPECT_EQ(std::count(wanted.begin(), wanted.end(), 0.0),
                2000 - std::count_if(numbers.begin(), numbers.end(), [](float u) { return u >= kP; }));
    }
  }
}

TEST_F(DropoutTest, DropsTheShareThatItIsToldTo) {
  const Results results = Run({.seed = 3, .samples = 3000});
  const double kept = static_cast<double>(results.out.size() - std::count(results.out.begin(), results.out.end(), 0.0));
  // Twice a chance of 3/4; four standard deviations of 99,000 draws.
  EXPECT_NEAR(kept / static_cast<double>(results.out.size()), 0.5625, 0.0064);
  EXPECT_EQ(results.out, results.grad);  // ones in both directions, and one mask
}

TEST_F(DropoutTest, SamplesHaveTheSameNumbersInEveryDivisionOfTheBatch) {
  const Results whole = Run({.seed = 3, .step = 5, .samples = 6});
  for (const int64_t size : {1, 2, 3}) {
    Results parts;
    for (int64_t first = 0; first < 6; first += size) {
      const Results part = Run({.seed = 3, .step = 5, .first_sample = first, .samples = size});
      parts.out.insert(parts.out.end(), part.out.begin(), part.out.end());
      parts.grad.insert(parts.grad.end(), part.grad.begin(), part.grad.end());
    }
    EXPECT_EQ(parts.out, whole.out) << size;
    EXPECT_EQ(parts.grad, whole.grad) << size;
  }
}

TEST_F(DropoutTest, SeedStepAndPlaceOfALayerChangeTheNumbers) {
  const Results first = Run({.seed = 3, .step = 5, .samples = 6});
  EXPECT_NE(Run({.seed = 4, .step = 5, .samples = 6}).out, first.out);
  EXPECT_NE(Run({.seed = 3, .step = 6, .samples = 6}).out, first.out);
  // If the two layers had one mask, no element would be dropped by only one of them: 1 / (1 - p)^2 in 3/4 of the
  // places.
  const int64_t kept = 6 * 33 - std::count(first.out.begin(), first.out.end(), 0.0);
  EXPECT_LT(kept, 6 * 33 * 0.68);
}

TEST_F(DropoutTest, RecomputationDropsTheSameElements) {
  const RandomState state = {.seed = 3, .step = 5, .samples = 6};
  const Results kept = Run(state), recomputed = Run(state, /*recompute=*/true);
  EXPECT_EQ(recomputed.out, kept.out);
  EXPECT_EQ(recomputed.grad, kept.grad);
}

TEST_F(DropoutTest, DrawsAfterARecomputedPartAreThoseWithoutRecomputation) {
  const auto run = [&](bool recompute) {
    Sequential model(std::make_unique<Sequential>(std::make_unique<Dropout>(kP)), std::make_unique<Dropout>(kP));
    model.children()[0].second->set_recompute(recompute);
    Tape tape(*stream_, *ops_);
    EXPECT_OK(tape.set_random_state({.seed = 1, .samples = 2}));
    const Tensor ones = TestTensor(DType::kFloat32, {2, 100}, Doubles(200, 1));
    const absl::StatusOr<Tensor> out = model.Forward(ones, tape);
    const absl::StatusOr<Tensor> grad = model.Backward(ones, tape);
    EXPECT_OK(stream_->Synchronize());
    EXPECT_EQ(ValuesOf(*out), ValuesOf(*grad));
    return ValuesOf(*out);
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(DropoutTest, EvaluationAndPOfZeroChangeNothingAndNeedNoState) {
  const Tensor x = TestTensor(DType::kFloat32, {8}, RandomValues(DType::kFloat32, 8, 1));
  Tape evaluation(*stream_, *ops_, /*keep_for_backward=*/false), training(*stream_, *ops_);
  Dropout dropout(kP), none(0);
  for (const absl::StatusOr<Tensor>& out :
       {dropout.Forward(x, evaluation), none.Forward(x, training), none.Backward(x, training)}) {
    ASSERT_OK(out);
    ExpectSameBytes(*out, x);
  }
}

TEST_F(DropoutTest, POfOneDropsAll) {
  Dropout dropout(1);
  Tape tape(*stream_, *ops_);
  ASSERT_OK(tape.set_random_state({}));
  const absl::StatusOr<Tensor> out = dropout.Forward(TestTensor(DType::kFloat32, {9}, Doubles(9, 5)), tape);
  ASSERT_OK(stream_->Synchronize());
  EXPECT_EQ(ValuesOf(*out), Doubles(9, 0));
}

TEST_F(DropoutTest, WhatIsMissingOrOutOfRangeIsSaid) {
  const Tensor x = TestTensor(DType::kFloat32, {8}, Doubles(8, 1));
  Tape tape(*stream_, *ops_);
  EXPECT_THAT(Dropout(kP).Forward(x, tape),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("call set_random_state")));
  EXPECT_THAT(tape.set_random_state({.first_sample = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("first sample -1")));
  EXPECT_THAT(tape.set_random_state({.step = uint64_t{1} << 40}), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(tape.set_random_state({.samples = 3}));
  EXPECT_THAT(Dropout(kP).Forward(x, tape),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[8] is no whole number of elements for each of "
                                                                     "the 3 samples")));
  for (const float p : {-0.1f, 1.5f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(Dropout(p).Forward(x, tape),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected 0 to 1")));
  }
}

}  // namespace
}  // namespace fsdp
