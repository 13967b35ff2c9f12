// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cuda/cuda_gemm_parts.h"

#include <cstddef>

namespace fsdp {
namespace {

// Elements: 16 bytes, the unit of a GPU's copy engines.
constexpr int64_t kGranule = 8;

// Multiplications above which a product at half of the fast kernels' speed, or less, costs more than three copies and
// their launches; and the smallest size for which it is compute and not memory that bounds the product.
constexpr double kMinProducts = 1 << 28;
constexpr int64_t kMinSize = 64;

// Elements that offsets of 32 bits reach.
constexpr int64_t kMaxSpan = (int64_t{1} << 31) - 1;

// `data` advanced by a place in a matrix whose rows are `stride` elements apart.
const void* At(const void* data, int64_t row, int64_t column, int64_t stride, DType dtype) {
  return static_cast<const std::byte*>(data) + (row * stride + column) * SizeOf(dtype);
}

// Rows [begin, begin + size) of a and c.
Gemm OfRows(Gemm g, int64_t begin, int64_t size) {
  g.a = g.transpose_a ? At(g.a, 0, begin, g.lda, g.dtype) : At(g.a, begin, 0, g.lda, g.dtype);
  g.c = const_cast<void*>(At(g.c, begin, 0, g.ldc, g.c_dtype));
  g.m = size;
  return g;
}

// Columns [begin, begin + size) of b and c.
Gemm OfColumns(Gemm g, int64_t begin, int64_t size) {
  g.b = g.transpose_b ? At(g.b, begin, 0, g.ldb, g.dtype) : At(g.b, 0, begin, g.ldb, g.dtype);
  if (g.bias != nullptr) g.bias = At(g.bias, 0, begin, 0, g.dtype);
  g.c = const_cast<void*>(At(g.c, 0, begin, g.ldc, g.c_dtype));
  g.n = size;
  return g;
}

// Columns [begin, begin + size) of a by the same rows of b.
Gemm OfTerms(Gemm g, int64_t begin, int64_t size) {
  g.a = g.transpose_a ? At(g.a, begin, 0, g.lda, g.dtype) : At(g.a, 0, begin, g.lda, g.dtype);
  g.b = g.transpose_b ? At(g.b, 0, begin, g.ldb, g.dtype) : At(g.b, begin, 0, g.ldb, g.dtype);
  g.k = size;
  return g;
}

// Elements from the first to the last of a matrix in memory.
int64_t Span(int64_t rows, int64_t columns, int64_t stride) { return (rows - 1) * stride + columns; }

// Where to halve `size` rows: at a multiple of a granule, if there are several.
int64_t HalfOf(int64_t size) {
  const int64_t half = size / 2;
  return half < kGranule ? half : half - half % kGranule;
}

// Adds `g`, in halves of halves until no matrix spans more than kMaxSpan elements or has only one row.
void AddShort(const Gemm& g, std::vector<Gemm>& parts) {
  const bool long_a = Span(g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda) > kMaxSpan;
  const bool long_b = Span(g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb) > kMaxSpan;
  const bool long_c = Span(g.m, g.n, g.ldc) > kMaxSpan;
  const auto add_both = [&parts](const Gemm& first, const Gemm& second) {
    AddShort(first, parts);
    AddShort(second, parts);
  };
  if (g.m > 1 && (long_c || (long_a && !g.transpose_a))) {
    const int64_t half = HalfOf(g.m);
    add_both(OfRows(g, 0, half), OfRows(g, half, g.m - half));
  } else if (g.n > 1 && long_b && g.transpose_b) {
    const int64_t half = HalfOf(g.n);
    add_both(OfColumns(g, 0, half), OfColumns(g, half, g.n - half));
  } else if (g.k > 1 && ((long_a && g.transpose_a) || (long_b && !g.transpose_b))) {
    const int64_t half = HalfOf(g.k);
    Gemm second = OfTerms(g, half, g.k - half);
    second.bias = nullptr;
    second.accumulate = true;
    add_both(OfTerms(g, 0, half), second);
  } else {
    parts.push_back(g);
  }
}

std::vector<Gemm> ShortParts(const std::vector<Gemm>& gemms) {
  std::vector<Gemm> parts;
  for (const Gemm& gemm : gemms) AddShort(gemm, parts);
  return parts;
}

}  // namespace

bool IsLargeTensorCoreProduct(const Gemm& gemm) {
  const double products = static_cast<double>(gemm.m) * static_cast<double>(gemm.n) * static_cast<double>(gemm.k);
  return SizeOf(gemm.dtype) == 2 && products >= kMinProducts && gemm.m >= kMinSize && gemm.n >= kMinSize &&
         gemm.k >= kMinSize;
}

std::vector<Gemm> GemmParts(const Gemm& gemm) {
  if (!IsLargeTensorCoreProduct(gemm)) return ShortParts({gemm});
  const int64_t m = gemm.m - gemm.m % kGranule, n = gemm.n - gemm.n % kGranule, k = gemm.k - gemm.k % kGranule;
  std::vector<Gemm> parts;
  const auto add = [&](const Gemm& box) {
    if (k == gemm.k) {
      parts.push_back(box);
      return;
    }
    parts.push_back(OfTerms(box, k, gemm.k - k));  // with the bias, or on top of what c has
    Gemm rest = OfTerms(box, 0, k);
    rest.bias = nullptr;
    rest.accumulate = true;
    parts.push_back(rest);
  };
  for (const bool last_rows : {false, true}) {
    if (last_rows && m == gemm.m) continue;
    const Gemm rows = last_rows ? OfRows(gemm, m, gemm.m - m) : OfRows(gemm, 0, m);
    add(OfColumns(rows, 0, n));
    if (n != gemm.n) add(OfColumns(rows, n, gemm.n - n));
  }
  return ShortParts(parts);
}

}  // namespace fsdp
