// SPDX-License-Identifier: Apache-2.0
//
// The product is cut into tiles of c, and each tile's sum over k into runs of kTileK:
//
//              n: 1024                    for each tile of c, m by n:
//            +--------+                     start it from c, from the bias, or from nothing
//   k: 2048  |   b    |                     for each run of k:
//            +--------+                       widen a's and b's part to dense float32
//   +------+ +--------+                       c += a b, by oneDNN in float32
//   |  a   | |   c    | m: 512              round c to 16 bits once
//   +------+ +--------+
//
// Widening costs m k + k n loads for 2 m n k operations, so at these sizes it is a few percent of the product, and the
// working memory (4 MiB of a, 8 of b, 2 of c) does not grow with the operands. Products of two 16-bit numbers are exact
// in float32, so the result differs from a native one only by the order of the sums. Tiles and runs depend only on the
// shape, and so do the bits.
#include "fsdp/nn/host/converted_matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fsdp/base/status_macros.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host/converted_matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

// Defined once, before the code of the first target.
#ifndef FSDP_NN_HOST_CONVERTED_MATMUL_ROWS_
#define FSDP_NN_HOST_CONVERTED_MATMUL_ROWS_
namespace fsdp {

// Rows of bfloat16 or float16, separate in memory. Too short for a call of tensor/convert_elements.h for each.
struct Rows {
  DType dtype = DType::kBFloat16;
  uint16_t* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next
};

}  // namespace fsdp
#endif  // FSDP_NN_HOST_CONVERTED_MATMUL_ROWS_

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

// StoreUpTo and LoadUpTo choose the conversion by the types.
template <typename T>
void WidenLoop(const Rows& from, float* to) {
  const FloatTag d;
  for (int64_t r = 0; r < from.rows; ++r) {
    const T* source = reinterpret_cast<const T*>(from.data) + r * from.stride;
    float* row = to + r * from.cols;
    ForEachVector(from.cols, [&](int64_t i, size_t count)
                                 HWY_ATTR { StoreUpTo(d, LoadUpTo(d, source + i, count), row + i, count); });
  }
}

template <typename T>
void RoundLoop(const float* from, const Rows& to) {
  const FloatTag d;
  for (int64_t r = 0; r < to.rows; ++r) {
    const float* row = from + r * to.cols;
    T* destination = reinterpret_cast<T*>(to.data) + r * to.stride;
    ForEachVector(to.cols, [&](int64_t i, size_t count)
                               HWY_ATTR { StoreUpTo(d, LoadUpTo(d, row + i, count), destination + i, count); });
  }
}

void WidenKernel(const Rows& from, float* to) {
  if (from.dtype == DType::kFloat16) return WidenLoop<Float16Bits>(from, to);
  WidenLoop<uint16_t>(from, to);
}

void RoundKernel(const float* from, const Rows& to) {
  if (to.dtype == DType::kFloat16) return RoundLoop<Float16Bits>(from, to);
  RoundLoop<uint16_t>(from, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(WidenKernel);
HWY_EXPORT(RoundKernel);

namespace {

// Writes rows * cols floats, dense.
void WidenRows(const Rows& from, float* to) { HWY_DYNAMIC_DISPATCH(WidenKernel)(from, to); }

// Rounds to nearest even; a NaN stays a NaN.
void RoundRows(const float* from, const Rows& to) { HWY_DYNAMIC_DISPATCH(RoundKernel)(from, to); }

// Rows and columns of c, and the run of k, that one call of oneDNN takes.
constexpr int64_t kTileM = 512;
constexpr int64_t kTileN = 1024;
constexpr int64_t kTileK = 2048;

// The working memory of a thread. It grows to at most 14 MiB and is kept.
struct Tiles {
  std::vector<float> a, b, c;

  static float* Of(std::vector<float>& memory, int64_t numel) {
    if (static_cast<int64_t>(memory.size()) < numel) memory.resize(numel);
    return memory.data();
  }
};

// A range of rows or columns.
struct Range {
  int64_t begin, size;
};

// The part of an operand whose rows and columns, as the product uses them, are given. For a transposed operand those
// are columns and rows in memory; the part stays transposed, since oneDNN reads either layout.
Rows PartOf(DType dtype, const void* data, int64_t stride, bool transposed, const Range& rows, const Range& cols) {
  const Range& memory_rows = transposed ? cols : rows;
  const Range& memory_cols = transposed ? rows : cols;
  return {.dtype = dtype,
          .data = const_cast<uint16_t*>(static_cast<const uint16_t*>(data)) + memory_rows.begin * stride +
                  memory_cols.begin,
          .rows = memory_rows.size,
          .cols = memory_cols.size,
          .stride = stride};
}

// A tile of the result.
class Tile {
 public:
  Tile(const Gemm& gemm, const Range& m, const Range& n, Tiles& memory) : gemm_(gemm), m_(m), n_(n), memory_(memory) {}

  // A float32 c is summed in place. A 16-bit c is summed in working memory, so that it is rounded once and not for each
  // run of k.
  absl::Status Run(const OneDnnMatmul& float32) {
    const bool in_place = gemm_.c_dtype == DType::kFloat32;
    const int64_t offset = m_.begin * gemm_.ldc + n_.begin;
    float* c = in_place ? static_cast<float*>(gemm_.c) + offset : Tiles::Of(memory_.c, m_.size * n_.size);
    const int64_t ldc = in_place ? gemm_.ldc : n_.size;
    const Rows rounded = {.dtype = gemm_.dtype,
                          .data = static_cast<uint16_t*>(gemm_.c) + (in_place ? 0 : offset),
                          .rows = m_.size,
                          .cols = n_.size,
                          .stride = gemm_.ldc};
    if (gemm_.accumulate && !in_place) WidenRows(rounded, c);
    if (gemm_.bias != nullptr) {
      // Every row begins as the bias, to which the products are added.
      const Rows bias = {.dtype = gemm_.dtype,
                         .data = const_cast<uint16_t*>(static_cast<const uint16_t*>(gemm_.bias)) + n_.begin,
                         .rows = 1,
                         .cols = n_.size,
                         .stride = n_.size};
      for (int64_t r = 0; r < m_.size; ++r) WidenRows(bias, c + r * ldc);
    }
    for (int64_t k = 0; k < gemm_.k; k += kTileK) {
      FSDP_RETURN_IF_ERROR(AddProduct({k, std::min(kTileK, gemm_.k - k)}, c, ldc, float32));
    }
    if (!in_place) RoundRows(c, rounded);
    return absl::OkStatus();
  }

 private:
  absl::Status AddProduct(const Range& k, float* c, int64_t ldc, const OneDnnMatmul& float32) {
    float* a = Tiles::Of(memory_.a, m_.size * k.size);
    float* b = Tiles::Of(memory_.b, k.size * n_.size);
    WidenRows(PartOf(gemm_.dtype, gemm_.a, gemm_.lda, gemm_.transpose_a, m_, k), a);
    WidenRows(PartOf(gemm_.dtype, gemm_.b, gemm_.ldb, gemm_.transpose_b, k, n_), b);
    return float32.Run({.m = m_.size,
                        .n = n_.size,
                        .k = k.size,
                        .a = a,
                        .b = b,
                        .c = c,
                        .lda = gemm_.transpose_a ? m_.size : k.size,
                        .ldb = gemm_.transpose_b ? k.size : n_.size,
                        .ldc = ldc,
                        .transpose_a = gemm_.transpose_a,
                        .transpose_b = gemm_.transpose_b,
                        .accumulate = k.begin > 0 || gemm_.accumulate || gemm_.bias != nullptr});
  }

  const Gemm& gemm_;
  const Range m_;
  const Range n_;
  Tiles& memory_;
};

}  // namespace

absl::Status ConvertedMatmul(const Gemm& gemm, const OneDnnMatmul& float32) {
  // Kept by the thread: each stream has a thread, which multiplies all the time.
  thread_local Tiles memory;
  for (int64_t m = 0; m < gemm.m; m += kTileM) {
    for (int64_t n = 0; n < gemm.n; n += kTileN) {
      Tile tile(gemm, {m, std::min(kTileM, gemm.m - m)}, {n, std::min(kTileN, gemm.n - n)}, memory);
      FSDP_RETURN_IF_ERROR(tile.Run(float32));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
#endif  // HWY_ONCE
