// SPDX-License-Identifier: Apache-2.0
//
// Cross entropy on every device: the loss together with its gradient, rows of many classes, and, if the device pads
// rows, that neither padding nor alignment changes a bit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr float kScale = 0.25f;

class CrossEntropyTest : public testing::TestWithParam<DType> {
 protected:
  struct Results {
    Tensor loss, statistics, grad;
  };

  static Doubles Logits(int64_t numel) {
    Doubles values = RandomValues(GetParam(), numel, 1);
    for (double& value : values) value *= 4;  // exact
    return values;
  }
  static Tensor Targets(int64_t rows, int64_t classes) {
    std::vector<int32_t> targets(rows);
    for (int64_t r = 0; r < rows; ++r) targets[r] = static_cast<int32_t>((r * 7 + classes - 1) % classes);
    return TokenTensor(targets, {rows});
  }
  static Results NewResults(int64_t rows, const Tensor& grad) {
    return {NanTensor(DType::kFloat32, {1}), NanTensor(DType::kFloat32, {rows, 2}), grad};
  }

  // The loss, and the gradient over the logits.
  Results Together(const Tensor& logits, const Tensor& targets) {
    const Results results = NewResults(logits.shape().dim(0), logits);
    ops_->CrossEntropyWithGradient(logits, targets, kScale, results.loss, results.statistics, *stream_);
    EXPECT_OK(stream_->Synchronize());
    return results;
  }
  Results OneAfterTheOther(const Tensor& logits, const Tensor& targets, const Tensor& grad) {
    const Results results = NewResults(logits.shape().dim(0), grad);
    ops_->CrossEntropy(logits, targets, results.loss, results.statistics, *stream_);
    ops_->CrossEntropyBackward(logits, targets, results.statistics, kScale, grad, *stream_);
    EXPECT_OK(stream_->Synchronize());
    return results;
  }
  static void ExpectSame(const Results& a, const Results& b) {
    ExpectSameBytes(a.loss, b.loss);
    ExpectSameBytes(a.statistics, b.statistics);
    EXPECT_EQ(ValuesOf(a.grad), ValuesOf(b.grad));
  }

  // Classes for rows that stay in a block's shared memory, with and without whole packs, and for a row that does not
  // fit.
  static std::vector<int64_t> Classes() { return {1, 7, 8, 51, 1003, 4099, 131075}; }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_P(CrossEntropyTest, LossAndGradientTogetherAreThoseOfOneAfterTheOther) {
  for (const int64_t classes : Classes()) {
    SCOPED_TRACE(classes);
    const int64_t rows = classes > 5000 ? 2 : 5;
    const Doubles values = Logits(rows * classes);
    const Tensor targets = Targets(rows, classes);
    const int64_t stride = ops_->RowStride(GetParam(), classes);
    const Tensor logits = PaddedTensor(GetParam(), {rows, classes}, values, stride);
    const Results expected = OneAfterTheOther(logits, targets, NanTensor(GetParam(), {rows, classes}));
    ExpectSame(Together(logits, targets), expected);
  }
}

TEST_P(CrossEntropyTest, LossAndGradientFollowTheReference) {
  for (const int64_t classes : {int64_t{51}, int64_t{50257}}) {
    SCOPED_TRACE(classes);
    const Doubles values = Logits(3 * classes);
    const std::vector<int32_t> targets = {0, 50, 17};
    const int64_t stride = ops_->RowStride(GetParam(), classes);
    const Results results = Together(PaddedTensor(GetParam(), {3, classes}, values, stride), TokenTensor(targets, {3}));
    const double loss = ReferenceCrossEntropy(values, targets);
    EXPECT_NEAR(ValuesOf(results.loss)[0], loss, 4e-7 * loss);
    const double tolerance = GetParam() == DType::kFloat32 ? 4e-6 : GetParam() == DType::kBFloat16 ? 1.0 / 256 : 2e-3;
    // Below the normal numbers of float16 a gradient has an absolute error.
    if (GetParam() == DType::kFloat16 && classes > 1000) continue;
    ExpectClose(results.grad, ReferenceCrossEntropyBackward(values, targets, kScale), tolerance);
  }
}

TEST_P(CrossEntropyTest, PaddingAndAlignmentDoNotChangeABit) {
  if (device_->type() == DeviceType::kCpu) GTEST_SKIP() << "hosts have no padded rows";
  for (const int64_t classes : {int64_t{51}, int64_t{1003}}) {
    SCOPED_TRACE(classes);
    const Doubles values = Logits(5 * classes);
    const Tensor targets = Targets(5, classes);
    const Results expected = Together(TestTensor(GetParam(), {5, classes}, values, 0), targets);
    for (const int64_t offset : {0, 1, 3}) {
      ExpectSame(Together(TestTensor(GetParam(), {5, classes}, values, offset), targets), expected);
      const Tensor padded = PaddedTensor(GetParam(), {5, classes}, values, 1088);
      ExpectSame(OneAfterTheOther(padded, targets, NanTensor(GetParam(), {5, classes}, offset)), expected);
      ExpectSame(Together(padded, targets), expected);
    }
  }
}

TEST_P(CrossEntropyTest, PaddingIsLeftAlone) {
  if (device_->type() == DeviceType::kCpu) GTEST_SKIP() << "hosts have no padded rows";
  const Tensor logits = PaddedTensor(GetParam(), {3, 51}, Logits(3 * 51), 64);
  Together(logits, Targets(3, 51));
  const Doubles all = ValuesOf(logits.WithPadding());
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 64; ++column) {
      EXPECT_EQ(std::isnan(all[row * 64 + column]), column >= 51) << row << " " << column;
    }
  }
}

// Logits of classes that must not be chosen: a whole pack of them, and a row's first.
TEST_P(CrossEntropyTest, ClassesOfMinusInfinityCountForNothing) {
  Doubles values = Logits(2 * 99);
  std::fill(values.begin() + 3, values.begin() + 60, -std::numeric_limits<double>::infinity());
  std::fill(values.begin() + 99, values.begin() + 99 + 33, -std::numeric_limits<double>::infinity());
  const Results results = Together(TestTensor(GetParam(), {2, 99}, values), TokenTensor({70, 70}, {2}));
  const Doubles grad = ValuesOf(results.grad);
  EXPECT_TRUE(std::isfinite(ValuesOf(results.loss)[0]));
  for (size_t i = 0; i < grad.size(); ++i) {
    if (std::isinf(values[i])) {
      EXPECT_EQ(grad[i], 0) << i;
    } else {
      EXPECT_TRUE(std::isfinite(grad[i])) << i;
    }
  }
}

TEST_P(CrossEntropyTest, LossObjectGivesTheSameEitherWay) {
  const Doubles values = Logits(3 * 11);
  const Tensor targets = Targets(3, 11);
  Tape tape(*stream_, *ops_);
  const Tensor apart = TestTensor(GetParam(), {3, 11}, values), together = TestTensor(GetParam(), {3, 11}, values);
  ASSERT_OK_AND_ASSIGN(const Tensor loss, CrossEntropyLoss().Forward(apart, targets, tape));
  ASSERT_OK(CrossEntropyLoss().Backward(kScale, tape).status());
  ASSERT_OK_AND_ASSIGN(const CrossEntropyLoss::LossAndGradient made,
                       CrossEntropyLoss().ForwardBackward(together, targets, kScale, tape));
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBytes(made.loss, loss);
  ExpectSameBytes(made.grad_logits, apart);
  EXPECT_EQ(made.grad_logits.data(), together.data());
}

// Sizes and factors for which a product by the inverse would round otherwise than the host's two divisions.
TEST_P(CrossEntropyTest, AScaleInTheDevicesMemoryGivesTheBitsOfTheSameNumber) {
  if (device_->type() == DeviceType::kCpu) GTEST_SKIP() << "hosts take the scale as a number";
  constexpr float kLossScale = 1021.7f;
  for (const int64_t classes : {int64_t{51}, int64_t{1003}}) {
    SCOPED_TRACE(classes);
    const Doubles values = Logits(7 * classes);
    const Tensor targets = Targets(7, classes);
    const Tensor scale = TestTensor(DType::kFloat32, {1}, {double{kLossScale}});
    Tape tape(*stream_, *ops_);
    ASSERT_OK_AND_ASSIGN(const auto by_number,
                         CrossEntropyLoss().ForwardBackward(TestTensor(GetParam(), {7, classes}, values), targets,
                                                            kLossScale / 3, tape));
    ASSERT_OK_AND_ASSIGN(const auto by_device,
                         CrossEntropyLoss().ForwardBackward(TestTensor(GetParam(), {7, classes}, values), targets,
                                                            DeviceScale{.scale = scale, .divisor = 3}, tape));
    ASSERT_OK(stream_->Synchronize());
    ExpectSameBytes(by_device.loss, by_number.loss);
    ExpectSameBytes(by_device.grad_logits, by_number.grad_logits);
  }
}

TEST_P(CrossEntropyTest, AScaleThatIsNotOneFloat32OrOnAHostIsRefused) {
  const Tensor logits = TestTensor(GetParam(), {3, 11}, Logits(33));
  Tape tape(*stream_, *ops_);
  const auto refusal = [&](const Tensor& scale) {
    return CrossEntropyLoss().ForwardBackward(logits, Targets(3, 11), DeviceScale{.scale = scale}, tape).status();
  };
  EXPECT_THAT(refusal(Tensor()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the scale is undefined, expected one float32")));
  EXPECT_THAT(refusal(NanTensor(DType::kFloat32, {2})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the scale is float32 [2], expected one")));
  if (device_->type() != DeviceType::kCpu) return;
  EXPECT_THAT(refusal(TestTensor(DType::kFloat32, {1}, {2})),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no kernel for a scale in the memory of cpu")));
}

INSTANTIATE_TEST_SUITE_P(DTypes, CrossEntropyTest, testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace fsdp
