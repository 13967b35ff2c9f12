// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices whose rows are padded or begin at odd addresses have the results of contiguous, aligned ones.
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/initializer.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/tape.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

class PaddedRowsTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (device_->type() == DeviceType::kCpu) GTEST_SKIP() << "hosts have no padded rows";
  }

  static Doubles Random(int64_t n, int seed) { return RandomValues(GetParam(), n, seed); }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_P(PaddedRowsTest, ProductsReadAndWriteThem) {
  const Doubles a = Random(6 * 11, 1), b = Random(11 * 13, 2), bias = Random(13, 3);
  const Tensor contiguous = NanTensor(GetParam(), {6, 13});
  const Tensor padded = PaddedTensor(GetParam(), {6, 13}, Random(6 * 13, 4), 64);
  ops_->Matmul(TestTensor(GetParam(), {6, 11}, a), TestTensor(GetParam(), {11, 13}, b),
               TestTensor(GetParam(), {13}, bias), contiguous, {}, *stream_);
  ops_->Matmul(PaddedTensor(GetParam(), {6, 11}, a, 64), PaddedTensor(GetParam(), {11, 13}, b, 16),
               TestTensor(GetParam(), {13}, bias), padded, {}, *stream_);
  ASSERT_OK(stream_->Synchronize());
  ExpectClose(padded, ValuesOf(contiguous), 1.0 / 256);
}

TEST_P(PaddedRowsTest, SumsOfColumnsLeaveOutThePadding) {
  const Doubles grad = Random(100 * 51, 1), before = Random(51, 2);
  const Tensor padded = TestTensor(GetParam(), {51}, before), contiguous = TestTensor(GetParam(), {51}, before);
  ops_->BiasBackward(PaddedTensor(GetParam(), {100, 51}, grad, 64), padded, *stream_);
  ops_->BiasBackward(TestTensor(GetParam(), {100, 51}, grad), contiguous, *stream_);
  ASSERT_OK(stream_->Synchronize());
  ExpectSameBytes(padded, contiguous);
}

TEST_P(PaddedRowsTest, CopiesGoEitherWay) {
  const Doubles values = Random(5 * 2051, 1);
  const Tensor padded = PaddedTensor(GetParam(), {5, 2051}, Doubles(5 * 2051, 0.0), 2112);
  const Tensor back = NanTensor(GetParam(), {5, 2051}, 1);
  ops_->CopyRows(TestTensor(GetParam(), {5, 2051}, values, 3), padded, *stream_);
  ops_->CopyRows(padded, back, *stream_);
  ASSERT_OK(stream_->Synchronize());
  EXPECT_EQ(ValuesOf(padded), values);
  EXPECT_EQ(ValuesOf(back), values);
}

TEST_P(PaddedRowsTest, HeadPadsRowsThatAreNoMultipleOf16Bytes) {
  for (const int64_t classes : {16, 51}) {
    Linear head(8, classes, Initializer::Normal(0, 1));
    head.AssignNames();
    head.PadOutputRows();
    for (const auto& [name, parameter] : head.NamedParameters()) parameter->dtype = GetParam();
    ASSERT_OK(head.Materialize(*device_, /*seed=*/1));
    Tape tape(*stream_, *ops_);
    ASSERT_OK_AND_ASSIGN(const Tensor out, head.Forward(TestTensor(GetParam(), {2, 3, 8}, Random(48, 1)), tape));
    EXPECT_EQ(out.shape(), Shape({2, 3, classes}));
    const bool pads = classes == 51 && GetParam() != DType::kFloat32;
    EXPECT_EQ(out.row_stride(), pads ? 64 : classes);
    ASSERT_OK_AND_ASSIGN(const Tensor contiguous, tape.Contiguous(out));
    EXPECT_TRUE(contiguous.is_contiguous());
    EXPECT_EQ(contiguous.data() == out.data(), !pads);
    ASSERT_OK(stream_->Synchronize());
    EXPECT_EQ(ValuesOf(contiguous), ValuesOf(out));
    ASSERT_OK(head.Backward(out, tape).status());
    ASSERT_OK(stream_->Synchronize());
  }
}

// Large enough to be packed. Operands at odd addresses, with rows of odd lengths, in each of the three products of a
// layer; and the same with rows that are aligned from the beginning, which no copy touches.
TEST_P(PaddedRowsTest, LargeProductsOfMisalignedRowsAreThoseOfAlignedOnes) {
  if (GetParam() == DType::kFloat32) GTEST_SKIP() << "no product of float32 is packed";
  constexpr int64_t kM = 501, kN = 1003, kK = 537;
  const auto product = [this](bool aligned, const MatmulOptions& options, DType c_dtype) {
    const auto place = [&](int64_t rows, int64_t columns, int seed, DType dtype = GetParam()) {
      const Doubles values = Random(rows * columns, seed);
      if (!aligned) return TestTensor(dtype, {rows, columns}, values, 1);
      return PaddedTensor(dtype, {rows, columns}, values, (columns + 63) / 64 * 64);
    };
    const Tensor a = options.transpose_a ? place(kK, kM, 1) : place(kM, kK, 1);
    const Tensor b = options.transpose_b ? place(kN, kK, 2) : place(kK, kN, 2);
    const Tensor c = place(kM, kN, 3, c_dtype);
    ops_->Matmul(a, b, Tensor(), c, options, *stream_);
    EXPECT_OK(stream_->Synchronize());
    return c;
  };
  const std::vector<MatmulOptions> all = {{.transpose_b = true}, {}, {.transpose_a = true, .accumulate = true}};
  // Equal bits on the emulator; a GPU may choose another algorithm for addresses that are aligned to more than 16
  // bytes.
  for (const MatmulOptions& options : all) {
    for (const DType c_dtype : {GetParam(), DType::kFloat32}) {
      const double tolerance = c_dtype == DType::kFloat32 ? 1e-5 : 1.0 / 256;
      ExpectClose(product(false, options, c_dtype), ValuesOf(product(true, options, c_dtype)), tolerance);
    }
  }
}

// The same products of operands that zeros extend to multiples of 8, which are single products.
TEST_P(PaddedRowsTest, LargeProductsOfOddSizesAreThoseOfSizesThatZerosExtend) {
  if (GetParam() == DType::kFloat32) GTEST_SKIP() << "no product of float32 is divided";
  constexpr int64_t kM = 501, kN = 1003, kK = 537;
  const auto round_up = [](int64_t size) { return (size + 7) / 8 * 8; };
  const auto product = [&](bool extended, const MatmulOptions& options) {
    const auto size = [&](int64_t n) { return extended ? round_up(n) : n; };
    // [rows, columns] of random numbers, within zeros.
    const auto place = [&](int64_t rows, int64_t columns, int seed) {
      const Doubles values = Random(rows * columns, seed);
      Doubles all(static_cast<size_t>(size(rows) * size(columns)), 0);
      for (int64_t i = 0; i < rows * columns; ++i) {
        all[static_cast<size_t>(i / columns * size(columns) + i % columns)] = values[static_cast<size_t>(i)];
      }
      return PaddedTensor(GetParam(), {size(rows), size(columns)}, all, (columns + 63) / 64 * 64);
    };
    const Tensor a = options.transpose_a ? place(kK, kM, 1) : place(kM, kK, 1);
    const Tensor b = options.transpose_b ? place(kN, kK, 2) : place(kK, kN, 2);
    const Tensor bias = TestTensor(GetParam(), {size(kN)}, Doubles(static_cast<size_t>(size(kN)), 3));
    const Tensor c = place(kM, kN, 3);
    ops_->Matmul(a, b, options.accumulate ? Tensor() : bias, c, options, *stream_);
    EXPECT_OK(stream_->Synchronize());
    const Doubles values = ValuesOf(c);
    Doubles inner;
    for (int64_t i = 0; i < kM * kN; ++i) {
      inner.push_back(values[static_cast<size_t>(i / kN * size(kN) + i % kN)]);
    }
    return inner;
  };
  for (const MatmulOptions& options :
       std::vector<MatmulOptions>{{.transpose_b = true}, {}, {.transpose_a = true, .accumulate = true}}) {
    const Doubles wanted = product(true, options), actual = product(false, options);
    for (size_t i = 0; i < wanted.size(); ++i) {
      // Sums of 537 products of numbers up to 1 are about 10.
      ASSERT_NEAR(actual[i], wanted[i], (std::abs(wanted[i]) + 4) / 64) << "element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, PaddedRowsTest, testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace fsdp
