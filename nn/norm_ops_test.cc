// SPDX-License-Identifier: Apache-2.0
//
// Norms of a device's kernels, in rows of many widths: kernels keep a row in registers, spread it over several warps,
// or walk over it in memory, by its width and its alignment.
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

struct Variant {
  DType dtype;
  int64_t rows;
  int64_t columns;
  int64_t offset;  // of every tensor, from a cache line
};

class NormOpsTest : public testing::TestWithParam<Variant> {
 protected:
  double tolerance() const {
    if (GetParam().dtype == DType::kFloat16) return 1.0 / 2048;
    return GetParam().dtype == DType::kBFloat16 ? 1.0 / 256 : 2e-6;
  }

  // A matrix, and a vector of a norm's parameters or their gradients.
  Doubles RandomRows(int seed) const { return RandomValues(GetParam().dtype, rows_ * columns_, seed); }
  Doubles RandomColumns(int seed) const { return RandomValues(GetParam().dtype, columns_, seed); }
  Tensor Rows(const Doubles& values) const {
    return TestTensor(GetParam().dtype, {rows_, columns_}, values, GetParam().offset);
  }
  Tensor Columns(const Doubles& values) const {
    return TestTensor(GetParam().dtype, {columns_}, values, GetParam().offset);
  }
  Tensor Output() const { return NanTensor(GetParam().dtype, {rows_, columns_}, GetParam().offset); }
  Tensor Statistic() const { return NanTensor(DType::kFloat64, {rows_}); }

  const int64_t rows_ = GetParam().rows;
  const int64_t columns_ = GetParam().columns;
  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

Doubles Sum(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST_P(NormOpsTest, LayerNormAndItsBackward) {
  const Doubles x = RandomRows(1), weight = RandomColumns(2), bias = RandomColumns(3), grad_out = RandomRows(4);
  const Doubles before = RandomColumns(5);
  const Tensor out = Output(), mean = Statistic(), rstd = Statistic(), grad_x = Output();
  const Tensor grad_weight = Columns(before), grad_bias = Columns(before);
  ops_->LayerNorm(Rows(x), Columns(weight), Columns(bias), 1e-5f, out, mean, rstd, *stream_);
  ops_->LayerNormBackward(Rows(grad_out), Rows(x), Columns(weight), mean, rstd, grad_x, grad_weight, grad_bias,
                          *stream_);
  ASSERT_OK(stream_->Synchronize());
  const LayerNormGrads expected = ReferenceLayerNormBackward(grad_out, x, weight, 1e-5f);
  ExpectClose(out, ReferenceLayerNorm(x, weight, bias, 1e-5f), 2 * tolerance());
  ExpectClose(grad_x, expected.x, 2 * tolerance());
  ExpectClose(grad_weight, Sum(before, expected.weight), 2 * tolerance());
  ExpectClose(grad_bias, Sum(before, expected.bias), 2 * tolerance());
}

TEST_P(NormOpsTest, RmsNormAndItsBackward) {
  const Doubles x = RandomRows(1), weight = RandomColumns(2), grad_out = RandomRows(4), before = RandomColumns(5);
  const Tensor out = Output(), rstd = Statistic(), grad_x = Output(), grad_weight = Columns(before);
  ops_->RmsNorm(Rows(x), Columns(weight), 1e-2f, out, rstd, *stream_);
  ops_->RmsNormBackward(Rows(grad_out), Rows(x), Columns(weight), rstd, grad_x, grad_weight, *stream_);
  ASSERT_OK(stream_->Synchronize());
  const RmsNormGrads expected = ReferenceRmsNormBackward(grad_out, x, weight, 1e-2f);
  ExpectClose(out, ReferenceRmsNorm(x, weight, 1e-2f), 2 * tolerance());
  ExpectClose(grad_x, expected.x, 2 * tolerance());
  ExpectClose(grad_weight, Sum(before, expected.weight), 3 * tolerance());
}

TEST_P(NormOpsTest, AddLayerNormHasTheBitsOfAddAndLayerNorm) {
  const Tensor x = Rows(RandomRows(1)), residual = Rows(RandomRows(2));
  const Tensor weight = Columns(RandomColumns(3)), bias = Columns(RandomColumns(4));
  const Tensor sum = Output(), out = Output(), mean = Statistic(), rstd = Statistic();
  const Tensor fused_sum = Output(), fused_out = Output(), fused_mean = Statistic(), fused_rstd = Statistic();
  ops_->Add(x, residual, sum, *stream_);
  ops_->LayerNorm(sum, weight, bias, 1e-5f, out, mean, rstd, *stream_);
  ops_->AddLayerNorm({x, residual, fused_sum}, weight, bias, 1e-5f, fused_out, fused_mean, fused_rstd, *stream_);
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBytes(fused_sum, sum);
  ExpectSameBytes(fused_out, out);
  ExpectSameBytes(fused_mean, mean);
  ExpectSameBytes(fused_rstd, rstd);
}

TEST_P(NormOpsTest, AddRmsNormHasTheBitsOfAddAndRmsNorm) {
  const Tensor x = Rows(RandomRows(1)), residual = Rows(RandomRows(2)), weight = Columns(RandomColumns(3));
  const Tensor sum = Output(), out = Output(), rstd = Statistic();
  const Tensor fused_sum = Output(), fused_out = Output(), fused_rstd = Statistic();
  ops_->Add(x, residual, sum, *stream_);
  ops_->RmsNorm(sum, weight, 1e-5f, out, rstd, *stream_);
  ops_->AddRmsNorm({x, residual, fused_sum}, weight, 1e-5f, fused_out, fused_rstd, *stream_);
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBytes(fused_sum, sum);
  ExpectSameBytes(fused_out, out);
  ExpectSameBytes(fused_rstd, rstd);
}

TEST_P(NormOpsTest, GradientsThatAreReplacedHaveTheBitsOfASumWithZero) {
  const Tensor x = Rows(RandomRows(1)), weight = Columns(RandomColumns(2)), grad_out = Rows(RandomRows(4));
  const Tensor out = Output(), mean = Statistic(), rstd = Statistic(), grad_x = Output();
  const Doubles zeros(columns_, 0.0);
  const Tensor added[3] = {Columns(zeros), Columns(zeros), Columns(zeros)};
  const auto nan = [&] { return NanTensor(GetParam().dtype, {columns_}, GetParam().offset); };
  const Tensor replaced[3] = {nan(), nan(), nan()};
  ops_->LayerNorm(x, weight, weight, 1e-5f, out, mean, rstd, *stream_);
  ops_->LayerNormBackward(grad_out, x, weight, mean, rstd, grad_x, added[0], added[1], *stream_);
  // One of the two may be replaced and the other added to.
  ops_->LayerNormBackward(grad_out, x, weight, mean, rstd, grad_x, {replaced[0], /*accumulates=*/false},
                          ParameterGrad(), *stream_);
  ops_->LayerNormBackward(grad_out, x, weight, mean, rstd, grad_x, Columns(zeros), {replaced[1], /*accumulates=*/false},
                          *stream_);
  ops_->RmsNorm(x, weight, 1e-2f, out, rstd, *stream_);
  ops_->RmsNormBackward(grad_out, x, weight, rstd, grad_x, added[2], *stream_);
  ops_->RmsNormBackward(grad_out, x, weight, rstd, grad_x, {replaced[2], /*accumulates=*/false}, *stream_);
  ASSERT_OK(stream_->Synchronize());
  for (int i = 0; i < 3; ++i) ExpectSameBytes(replaced[i], added[i]);
}

TEST_P(NormOpsTest, AddLayerNormBackwardHasTheBitsOfTheBackwardAndAdd) {
  const Tensor sum = Rows(RandomRows(1)), grad_out = Rows(RandomRows(2)), grad_sum = Rows(RandomRows(3));
  const Tensor weight = Columns(RandomColumns(4)), mean = Statistic(), rstd = Statistic();
  const Doubles before = RandomColumns(5);
  const NormGrads apart = {Output(), Columns(before), Columns(before)};
  const NormGrads fused = {Output(), Columns(before), Columns(before)};
  ops_->LayerNorm(sum, weight, weight, 1e-5f, Output(), mean, rstd, *stream_);
  ops_->LayerNormBackward(grad_out, sum, weight, mean, rstd, apart.x, apart.weight, apart.bias, *stream_);
  ops_->Add(apart.x, grad_sum, apart.x, *stream_);
  ops_->AddLayerNormBackward(grad_out, grad_sum, sum, weight, mean, rstd, fused, *stream_);
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBytes(fused.x, apart.x);
  ExpectSameBytes(fused.weight.grad, apart.weight.grad);
  ExpectSameBytes(fused.bias.grad, apart.bias.grad);
}

TEST_P(NormOpsTest, AddRmsNormBackwardHasTheBitsOfTheBackwardAndAdd) {
  const Tensor sum = Rows(RandomRows(1)), grad_out = Rows(RandomRows(2)), grad_sum = Rows(RandomRows(3));
  const Tensor weight = Columns(RandomColumns(4)), rstd = Statistic();
  const Doubles before = RandomColumns(5);
  const NormGrads apart = {Output(), Columns(before), Tensor()};
  const NormGrads fused = {Output(), Columns(before), Tensor()};
  ops_->RmsNorm(sum, weight, 1e-5f, Output(), rstd, *stream_);
  ops_->RmsNormBackward(grad_out, sum, weight, rstd, apart.x, apart.weight, *stream_);
  ops_->Add(apart.x, grad_sum, apart.x, *stream_);
  ops_->AddRmsNormBackward(grad_out, grad_sum, sum, weight, rstd, fused, *stream_);
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBytes(fused.x, apart.x);
  ExpectSameBytes(fused.weight.grad, apart.weight.grad);
}

TEST_P(NormOpsTest, AFrozenParameterChangesNoOtherGradient) {
  const Tensor x = Rows(RandomRows(1)), grad_out = Rows(RandomRows(2)), weight = Columns(RandomColumns(3));
  const Tensor mean = Statistic(), rstd = Statistic();
  const Doubles before = RandomColumns(4);
  const Tensor grad_x = Output(), grad_weight = Columns(before), grad_bias = Columns(before);
  const Tensor only_x = Output(), x_with_bias = Output(), only_bias = Columns(before);
  ops_->LayerNorm(x, weight, weight, 1e-5f, Output(), mean, rstd, *stream_);
  ops_->LayerNormBackward(grad_out, x, weight, mean, rstd, grad_x, grad_weight, grad_bias, *stream_);
  ops_->LayerNormBackward(grad_out, x, weight, mean, rstd, only_x, Tensor(), Tensor(), *stream_);
  ops_->LayerNormBackward(grad_out, x, weight, mean, rstd, x_with_bias, Tensor(), only_bias, *stream_);
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBytes(only_x, grad_x);
  ExpectSameBytes(x_with_bias, grad_x);
  ExpectSameBytes(only_bias, grad_bias);
}

// Widths: part of a warp's packs, all of them, several warps, more than a team keeps in registers, no whole packs.
// Rows: several teams and blocks, one row, no row.
INSTANTIATE_TEST_SUITE_P(Variants, NormOpsTest,
                         testing::Values(Variant{DType::kFloat32, 11, 384, 0}, Variant{DType::kFloat32, 5, 1028, 0},
                                         Variant{DType::kFloat32, 3, 4100, 0}, Variant{DType::kFloat32, 7, 100, 3},
                                         Variant{DType::kBFloat16, 300, 64, 0}, Variant{DType::kBFloat16, 11, 768, 0},
                                         Variant{DType::kBFloat16, 5, 2056, 0}, Variant{DType::kBFloat16, 2, 8200, 0},
                                         Variant{DType::kBFloat16, 7, 768, 1}, Variant{DType::kBFloat16, 7, 45, 0},
                                         Variant{DType::kBFloat16, 1, 768, 0}, Variant{DType::kBFloat16, 0, 768, 0},
                                         Variant{DType::kFloat16, 11, 768, 0}, Variant{DType::kFloat16, 3, 1032, 0},
                                         Variant{DType::kFloat16, 7, 45, 1}, Variant{DType::kFloat16, 1, 8, 0}),
                         [](const auto& info) {
                           const Variant& v = info.param;
                           return std::string(DTypeName(v.dtype)) + "_" + std::to_string(v.rows) + "x" +
                                  std::to_string(v.columns) + "_" + std::to_string(v.offset);
                         });

}  // namespace
}  // namespace fsdp
