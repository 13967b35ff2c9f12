// SPDX-License-Identifier: Apache-2.0
//
// HostMatmul against float64, for every transposition, dtype and kind of output. host_matmul_avx2_test runs the same
// tests without oneDNN's bfloat16.
#include "fsdp/nn/host/host_matmul.h"

#include <string>
#include <tuple>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr DType kF32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;
constexpr DType kF16 = DType::kFloat16;

// bfloat16 has 8 bits and float16 has 11; products are summed in float32 and rounded once.
double ToleranceOf(DType dtype) { return dtype == kF32 ? 2e-6 : dtype == kF16 ? 1.0 / 2048 : 1.0 / 256; }

// A product with its operands.
struct Product {
  MatmulSizes sizes;
  MatmulOptions options;
  Tensor a, b, c, bias;
  Doubles expected;

  absl::Status Run(const HostMatmul& matmul) const {
    return matmul.Run({.m = sizes.m,
                       .n = sizes.n,
                       .k = sizes.k,
                       .a = a.data(),
                       .b = b.data(),
                       .bias = bias.defined() ? bias.data() : nullptr,
                       .c = c.data(),
                       .lda = options.transpose_a ? sizes.m : sizes.k,
                       .ldb = options.transpose_b ? sizes.k : sizes.n,
                       .ldc = sizes.n,
                       .dtype = a.dtype(),
                       .c_dtype = c.dtype(),
                       .transpose_a = options.transpose_a,
                       .transpose_b = options.transpose_b,
                       .accumulate = options.accumulate});
  }
};

enum class Output { kPlain, kBias, kAccumulate };

struct Kind {
  DType dtype, c_dtype;
  bool transpose_a, transpose_b;
  Output output;
  BFloat16Products products = BFloat16Products::kNative;
};

std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds;
  for (const auto& [dtype, c_dtype] : {std::pair{kF32, kF32}, std::pair{kBf16, kBf16}, std::pair{kBf16, kF32},
                                       std::pair{kF16, kF16}, std::pair{kF16, kF32}}) {
    for (const int transposed : {0, 1, 2, 3}) {
      for (const Output output : {Output::kPlain, Output::kBias, Output::kAccumulate}) {
        kinds.push_back({dtype, c_dtype, (transposed & 1) != 0, (transposed & 2) != 0, output});
        if (dtype != kBf16) continue;  // of float16 there is one kind
        kinds.push_back(kinds.back());
        kinds.back().products = BFloat16Products::kConverted;
      }
    }
  }
  return kinds;
}

std::string NameOf(const Kind& kind) {
  const char* outputs[] = {"Plain", "Bias", "Accumulate"};
  return std::string(DTypeName(kind.dtype)) + "_" + std::string(DTypeName(kind.c_dtype)) +
         (kind.transpose_a ? "T" : "N") + (kind.transpose_b ? "T" : "N") + outputs[static_cast<int>(kind.output)] +
         (kind.products == BFloat16Products::kConverted ? "Converted" : "");
}

// The same values at every `offset`; without `reference`, expected is not computed. Operands are 1, 2, 3 and 5 times as
// far from a cache line.
Product MakeProduct(const Kind& kind, const MatmulSizes& sizes, int64_t offset, bool reference = true) {
  const auto [m, n, k] = sizes;
  const Doubles a = RandomValues(kind.dtype, m * k, 1);
  const Doubles b = RandomValues(kind.dtype, k * n, 2);
  Product product = {sizes, {kind.transpose_a, kind.transpose_b, kind.output == Output::kAccumulate}, {}, {}, {}, {},
                     {}};
  product.expected = reference ? ReferenceMatmul(a, b, sizes, product.options) : Doubles(m * n, 0.0);
  product.a = TestTensor(kind.dtype, {m * k}, a, offset);
  product.b = TestTensor(kind.dtype, {k * n}, b, 2 * offset);
  product.c = NanTensor(kind.c_dtype, {m * n}, 3 * offset);
  if (kind.output == Output::kAccumulate) {
    const Doubles before = RandomValues(kind.c_dtype, m * n, 3);
    product.c = TestTensor(kind.c_dtype, {m * n}, before, 3 * offset);
    for (size_t i = 0; i < before.size(); ++i) product.expected[i] += before[i];
  }
  if (kind.output == Output::kBias) {
    const Doubles bias = RandomValues(kind.dtype, n, 4);
    product.bias = TestTensor(kind.dtype, {n}, bias, 5 * offset);
    for (size_t i = 0; i < product.expected.size(); ++i) product.expected[i] += bias[i % n];
  }
  return product;
}

constexpr MatmulSizes kSizes[] = {{1, 1, 1},     {1, 257, 48}, {33, 7, 5},    {64, 144, 48}, {32, 12, 32},
                                  {101, 36, 13}, {64, 1, 48},  {48, 144, 64}, {129, 65, 33}, {3, 500, 17}};

class HostMatmulTest : public testing::TestWithParam<Kind> {};

TEST_P(HostMatmulTest, EqualsFloat64) {
  const HostMatmul matmul(/*threads=*/1, GetParam().products);
  for (const MatmulSizes& sizes : kSizes) {
    SCOPED_TRACE(testing::Message() << sizes.m << " x " << sizes.n << " x " << sizes.k);
    const Product product = MakeProduct(GetParam(), sizes, /*offset=*/0);
    ASSERT_OK(product.Run(matmul));
    ExpectClose(product.c, product.expected, ToleranceOf(GetParam().c_dtype));
  }
}

// FSDP puts parameters at any element of a flat buffer, at a different one for each world size, and its result is
// compared with ==.
TEST_P(HostMatmulTest, BitsDoNotDependOnAlignment) {
  const HostMatmul matmul(/*threads=*/1, GetParam().products);
  for (const MatmulSizes& sizes : kSizes) {
    SCOPED_TRACE(testing::Message() << sizes.m << " x " << sizes.n << " x " << sizes.k);
    const Product aligned = MakeProduct(GetParam(), sizes, /*offset=*/0, /*reference=*/false);
    ASSERT_OK(aligned.Run(matmul));
    for (const int64_t offset : {1, 2, 3, 4, 7, 8, 16, 21}) {
      const Product moved = MakeProduct(GetParam(), sizes, offset, /*reference=*/false);
      ASSERT_OK(moved.Run(matmul));
      ExpectSameBytes(moved.c, aligned.c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, HostMatmulTest, testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return NameOf(info.param); });

// More than one tile of the converted product in each dimension, against one float32 product of the same operands.
TEST(HostMatmulTilesTest, TilesMakeOneProduct) {
  constexpr MatmulSizes kLarge = {515, 1027, 2051};
  for (const Kind& kind : AllKinds()) {
    const bool converted = kind.dtype == kF16 || kind.products == BFloat16Products::kConverted;
    if (!converted || kind.transpose_a == kind.transpose_b) continue;
    SCOPED_TRACE(NameOf(kind));
    const Product product = MakeProduct(kind, kLarge, /*offset=*/1, /*reference=*/false);
    Product wide = product;
    wide.a = TestTensor(kF32, product.a.shape(), ValuesOf(product.a));
    wide.b = TestTensor(kF32, product.b.shape(), ValuesOf(product.b));
    wide.c = TestTensor(kF32, product.c.shape(), ValuesOf(product.c));
    if (product.bias.defined()) wide.bias = TestTensor(kF32, product.bias.shape(), ValuesOf(product.bias));
    ASSERT_OK(product.Run(HostMatmul(1, kind.products)));
    ASSERT_OK(wide.Run(HostMatmul(1)));
    ExpectClose(product.c, ValuesOf(wide.c), 4 * ToleranceOf(kind.c_dtype));
  }
}

TEST(HostMatmulThreadsTest, TwoThreadsMultiplyToo) {
  const Product product = MakeProduct({kF32, kF32, false, true, Output::kPlain}, {129, 65, 33}, /*offset=*/0);
  ASSERT_OK(product.Run(HostMatmul(/*threads=*/2)));
  ExpectClose(product.c, product.expected, ToleranceOf(kF32));
}

// A head of [T, 3 * H * D] has rows that are apart, in operands and result.
TEST(HostMatmulStrideTest, RowsMayBeApart) {
  constexpr int64_t kM = 5, kN = 6, kK = 4, kStride = 19;
  for (const DType dtype : {kF32, kBf16, kF16}) {
    const Doubles a = RandomValues(dtype, kM * kStride, 1), b = RandomValues(dtype, kN * kStride, 2);
    const Tensor a_memory = TestTensor(dtype, {kM * kStride}, a, 1), b_memory = TestTensor(dtype, {kN * kStride}, b, 3);
    const Tensor c = TestTensor(dtype, {kM * kStride}, Doubles(kM * kStride, 7.0));
    ASSERT_OK(HostMatmul(1).Run({.m = kM,
                                 .n = kN,
                                 .k = kK,
                                 .a = a_memory.data(),
                                 .b = b_memory.data(),
                                 .c = c.data(),
                                 .lda = kStride,
                                 .ldb = kStride,
                                 .ldc = kStride,
                                 .dtype = dtype,
                                 .c_dtype = dtype,
                                 .transpose_b = true}));
    Doubles expected(kM * kStride, 7.0);
    for (int64_t i = 0; i < kM; ++i) {
      for (int64_t j = 0; j < kN; ++j) {
        expected[i * kStride + j] = 0;
        for (int64_t l = 0; l < kK; ++l) expected[i * kStride + j] += a[i * kStride + l] * b[j * kStride + l];
      }
    }
    ExpectClose(c, expected, ToleranceOf(dtype));
  }
}

TEST(HostMatmulErrorTest, RefusesOtherDtypes) {
  EXPECT_THAT(HostMatmul(1).Run({.m = 1, .n = 1, .k = 1, .dtype = DType::kFloat64}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("float64 to float32")));
}

TEST(HostMatmulErrorTest, NothingToMultiplyIsNoWork) {
  EXPECT_OK(HostMatmul(1).Run({.m = 0, .n = 4, .k = 3}));
  EXPECT_OK(HostMatmul(1).Run({.m = 2, .n = 4, .k = 0, .accumulate = true}));
}

}  // namespace
}  // namespace fsdp
