// SPDX-License-Identifier: Apache-2.0
//
// Products of tiles in shared memory, a warp at a time, for attention: c [16, 8 kN] += a [16, kK] b, with c in the
// lanes' registers as cuda/mma.h lays it out, whatever the dtype: bfloat16 and float16 by tensor cores, float32 by
// multiply-adds (not TF32, which keeps 10 bits). One layout for all dtypes lets softmax be written once, on registers.
// For .cu files.
//
//   c[n] is 16 x 8.    columns   0 1      2 3      4 5      6 7
//             row 0            lane 0   lane 1   lane 2   lane 3      elements 0 and 1 of the lane's four
//             row 1            lane 4   lane 5   lane 6   lane 7
//             ...
//             row 8            lane 0   lane 1   lane 2   lane 3      elements 2 and 3
//             ...
#ifndef FSDP_NN_CUDA_CUDA_TILE_PRODUCT_H_
#define FSDP_NN_CUDA_CUDA_TILE_PRODUCT_H_

#include <type_traits>

#include "fsdp/cuda/mma.h"

namespace fsdp {

// [16, 8 kN] as each lane's share: see TileRow and TileColumn. It stays in registers as long as every index is known at
// compile time, so loops over it are unrolled.
template <int kN>
using TileSums = float[kN][4];

// Row and column in c, of element `e` of c[n], for the calling lane. Elements 0 and 1 are of one row, 2 and 3 of
// another.
__device__ inline int TileRow(int e) { return static_cast<int>(threadIdx.x) % 32 / 4 + e / 2 * 8; }
__device__ inline int TileColumn(int n, int e) { return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2; }

// Elements between the rows of a tile of `columns`: a multiple of 16 bytes, as LoadMatrices needs it, and 16 bytes more
// than the columns, so that the 8 rows of a matrix begin in different banks of shared memory.
template <typename T>
constexpr int TileStride(int columns) {
  return columns + 16 / static_cast<int>(sizeof(T));
}

// c += a b for bfloat16 or float16, by tensor cores. b's rows are c's columns if kTransposed (b [8 kN, kK] in memory),
// else k's (b [kK, 8 kN]). `a_stride` and `b_stride` are the TileStride of a's and b's tiles. All lanes of a warp call.
// `a` and `b` begin at a multiple of 16 bytes in shared memory; kK is a multiple of 16 and kN even.
template <bool kTransposed, int kN, int kK, typename T, typename = std::enable_if_t<sizeof(T) == 2>>
__device__ inline void MultiplyTiles(const T* a, int a_stride, const T* b, int b_stride, TileSums<kN>& c) {
  static_assert(kN % 2 == 0 && kK % 16 == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane % 8;
  const int second = lane / 8 % 2 * 8;  // in matrices 1 and 3
  const int later = lane / 16 * 8;      // in matrices 2 and 3
#pragma unroll
  for (int k = 0; k < kK; k += 16) {
    // The 16 x 16 part of a at column k, as four matrices of 8 x 8.
    MmaA a_registers;
    LoadMatrices<false>(a + (row + second) * a_stride + k + later, a_registers.at);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      // Two of c's tiles together; for each, the first and the last 8 of k.
      unsigned b_registers[4];
      if constexpr (kTransposed) {
        LoadMatrices<false>(b + (8 * n + row + later) * b_stride + k + second, b_registers);
      } else {
        LoadMatrices<true>(b + (k + row + second) * b_stride + 8 * n + later, b_registers);
      }
      MultiplyAdd<T>(a_registers, {b_registers[0], b_registers[1]}, c[n]);
      MultiplyAdd<T>(a_registers, {b_registers[2], b_registers[3]}, c[n + 1]);
    }
  }
}

// c += a b for float32, by multiply-adds, with the same layout of c. The tile's sums are added to c as one term each,
// so that c's error does not grow with every multiply-add. kN is a multiple of 4. Each term is a fused multiply-add, in
// the order of k.
template <bool kTransposed, int kN, int kK>
__device__ inline void MultiplyTiles(const float* a, int a_stride, const float* b, int b_stride, TileSums<kN>& c) {
  constexpr int kTogether = 4;  // of c's tiles, for each value of a
  static_assert(kN % kTogether == 0);
#pragma unroll
  for (int first_n = 0; first_n < kN; first_n += kTogether) {
    // Sums of this tile only, in registers.
    TileSums<kTogether> sums = {};
#pragma unroll 4
    for (int k = 0; k < kK; ++k) {
      // The lane's two rows of c need two values of a.
      const float first = a[TileRow(0) * a_stride + k];
      const float last = a[TileRow(2) * a_stride + k];
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = TileColumn(first_n + n, j);
          const float value = kTransposed ? b[column * b_stride + k] : b[k * b_stride + column];
          sums[n][j] = fmaf(first, value, sums[n][j]);
          sums[n][2 + j] = fmaf(last, value, sums[n][2 + j]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[first_n + n][e] += sums[n][e];
    }
  }
}

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_TILE_PRODUCT_H_
