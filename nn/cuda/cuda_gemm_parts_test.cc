// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cuda/cuda_gemm_parts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kReach = int64_t{1} << 31;

// Addresses that are never used.
Gemm At(Gemm gemm) {
  gemm.a = reinterpret_cast<const void*>(uintptr_t{1} << 40);
  gemm.b = reinterpret_cast<const void*>(uintptr_t{2} << 40);
  gemm.c = reinterpret_cast<void*>(uintptr_t{3} << 40);
  return gemm;
}

struct Place {
  int64_t row, column;
};

Place PlaceOf(const void* part, const void* whole, int64_t stride, DType dtype) {
  const auto distance = static_cast<const std::byte*>(part) - static_cast<const std::byte*>(whole);
  const int64_t elements = distance / SizeOf(dtype);
  return {elements / stride, elements % stride};
}

int64_t SpanOf(int64_t rows, int64_t columns, int64_t stride) { return (rows - 1) * stride + columns; }

int64_t LongestSpan(const Gemm& g) {
  const int64_t a = g.transpose_a ? SpanOf(g.k, g.m, g.lda) : SpanOf(g.m, g.k, g.lda);
  const int64_t b = g.transpose_b ? SpanOf(g.n, g.k, g.ldb) : SpanOf(g.k, g.n, g.ldb);
  return std::max({a, b, SpanOf(g.m, g.n, g.ldc)});
}

// The box of a part: its place in c, and the first of its terms, which a's and b's addresses agree on.
void ExpectInPlace(const Gemm& part, const Gemm& whole, int64_t& term) {
  const Place c = PlaceOf(part.c, whole.c, whole.ldc, whole.c_dtype);
  const Place a = PlaceOf(part.a, whole.a, whole.lda, whole.dtype);
  const Place b = PlaceOf(part.b, whole.b, whole.ldb, whole.dtype);
  term = whole.transpose_a ? a.row : a.column;
  EXPECT_EQ(whole.transpose_b ? b.column : b.row, term);
  EXPECT_EQ(whole.transpose_a ? a.column : a.row, c.row);
  EXPECT_EQ(whole.transpose_b ? b.row : b.column, c.column);
}

// Each product of an element of a and one of b belongs to one part; the first part of an element of c sets it, or adds
// to it if the whole does, and the others add.
TEST(GemmPartsTest, NoMatrixReachesBeyond32BitsAndEachTermIsAddedOnce) {
  constexpr int64_t kM = 13, kN = 11, kK = 9, kStride = int64_t{1} << 29;
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const int long_one : {0, 1, 2}) {
        const auto stride = [&](int which) { return which == long_one ? kStride : 16; };
        const Gemm whole = At({.m = kM,
                               .n = kN,
                               .k = kK,
                               .lda = stride(0),
                               .ldb = stride(1),
                               .ldc = stride(2),
                               .dtype = DType::kBFloat16,
                               .transpose_a = transpose_a,
                               .transpose_b = transpose_b});
        std::vector<int> terms(kM * kN * kK), parts_of(kM * kN);
        const std::vector<Gemm> parts = GemmParts(whole);
        EXPECT_GT(parts.size(), 1u);
        for (const Gemm& part : parts) {
          EXPECT_LT(LongestSpan(part), kReach);
          int64_t term = 0;
          ExpectInPlace(part, whole, term);
          const Place c = PlaceOf(part.c, whole.c, whole.ldc, whole.c_dtype);
          for (int64_t i = c.row; i < c.row + part.m; ++i) {
            for (int64_t j = c.column; j < c.column + part.n; ++j) {
              EXPECT_EQ(part.accumulate, parts_of[i * kN + j]++ > 0);
              for (int64_t k = term; k < term + part.k; ++k) ++terms[(i * kN + j) * kK + k];
            }
          }
        }
        EXPECT_EQ(terms, std::vector<int>(kM * kN * kK, 1));
      }
    }
  }
}

// GPT-2's logits of 64 sequences of 1,024 tokens: 65,536 rows, 50,304 elements apart.
TEST(GemmPartsTest, TheHeadOfManyTokensIsCutInTwoAndThatOfFewIsNot) {
  for (const int64_t rows : {64, 32}) {
    const int64_t tokens = rows * 1024;
    const Gemm logits = At({.m = tokens,
                            .n = 50256,
                            .k = 768,
                            .lda = 768,
                            .ldb = 768,
                            .ldc = 50304,
                            .dtype = DType::kBFloat16,
                            .c_dtype = DType::kBFloat16,
                            .transpose_b = true});
    const Gemm grad_weight = At({.m = 50256,
                                 .n = 768,
                                 .k = tokens,
                                 .lda = 50304,
                                 .ldb = 768,
                                 .ldc = 768,
                                 .dtype = DType::kBFloat16,
                                 .transpose_a = true});
    for (const Gemm& whole : {logits, grad_weight}) {
      const std::vector<Gemm> parts = GemmParts(whole);
      ASSERT_EQ(parts.size(), rows == 64 ? 2u : 1u);
      EXPECT_LT(LongestSpan(parts.back()), kReach);
      if (rows == 32) continue;
      EXPECT_EQ(whole.transpose_a ? parts[0].k : parts[0].m, 32 * 1024);
      EXPECT_EQ(parts[1].accumulate, whole.transpose_a);
    }
  }
}

}  // namespace
}  // namespace fsdp
