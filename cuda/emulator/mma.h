// SPDX-License-Identifier: Apache-2.0
//
// The operations of cuda/mma.h without tensor cores, written out from the tables of fragments in PTX's manual
// (mma.m16n8k16 and ldmatrix): the last lane that comes gathers all fragments into matrices, multiplies, and
// distributes the results. Products are exact in float32; sums go over k in order, where a tensor core has an order of
// its own.
#ifndef FSDP_CUDA_EMULATOR_MMA_H_
#define FSDP_CUDA_EMULATOR_MMA_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <source_location>
#include <type_traits>

#include "fsdp/cuda/emulator/block.h"

namespace fsdp {

// The fragments of a and of b, as in cuda/mma.h.
struct MmaA {
  unsigned at[4];
};
struct MmaB {
  unsigned at[2];
};

// Half `half` of a register, a bfloat16 or float16. Widening is exact.
template <typename T>
float HalfOf(unsigned bits, int half) {
  const T value = {static_cast<uint16_t>(half == 0 ? bits : bits >> 16)};
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else {
    return __bfloat162float(value);
  }
}

// Where a lane has its operands and wants its results. The last lane to come does the work of all.
struct MmaOperands {
  const MmaA* a;
  const MmaB* b;
  float* c;
};

// The tables: of a (16 x 16), lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) + {0, 1} and the same + 8; of b
// (16 x 8), those columns as rows, of column l / 4; of c (16 x 8), rows as of a, columns 2 (l % 4) + {0, 1}. `lanes`
// are the 32 addresses of the lanes' MmaOperands.
template <typename T>
void MultiplyAddOfWarp(const uint64_t* lanes) {
  const auto operands = [lanes](int lane) { return *reinterpret_cast<const MmaOperands*>(lanes[lane]); };
  // The matrices as a whole, gathered from the registers of all lanes.
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    // Four registers of a with two elements each: rows l / 4 and l / 4 + 8, then the same for the upper 8 columns.
    const MmaOperands own = operands(lane);
    for (int i = 0; i < 8; ++i) {
      a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] = HalfOf<T>(own.a->at[i / 2], i % 2);
    }
    // Two registers of b: rows 2 (l % 4) and the next one, then 8 rows below, of column l / 4.
    for (int i = 0; i < 4; ++i) b[lane % 4 * 2 + i % 2 + i / 2 * 8][lane / 4] = HalfOf<T>(own.b->at[i / 2], i % 2);
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* c = operands(lane).c;
    for (int e = 0; e < 4; ++e) {
      // The old c is the first term of the sum.
      for (int k = 0; k < 16; ++k) c[e] += a[lane / 4 + e / 2 * 8][k] * b[k][lane % 4 * 2 + e % 2];
    }
  }
}

// c += a b for the warp; every lane must call. The first lanes wait until the last one has come; c is read and written
// by that one.
template <typename T>
void MultiplyAdd(const MmaA& a, const MmaB& b, float (&c)[4]) {
  const MmaOperands own = {&a, &b, c};
  EmulatedBlock::Current().RunTogether(reinterpret_cast<uint64_t>(&own), std::source_location::current(),
                                       MultiplyAddOfWarp<T>);
}

template <typename T>
unsigned RoundPair(float first, float second) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(first).bits | unsigned{__float2half_rn(second).bits} << 16;
  } else {
    return __float2bfloat16_rn(first).bits | unsigned{__float2bfloat16_rn(second).bits} << 16;
  }
}

// A lane's row of shared memory, and where its four registers go. `row` has 8 elements; `matrices` has room for 4
// registers.
struct MatrixOperands {
  const uint16_t* row;
  unsigned* matrices;
};

// Lane l gets elements (l / 4, 2 (l % 4)) and the next one of each of the four matrices; transposed, of the transposed
// matrix.
template <bool kTransposed>
void LoadMatricesOfWarp(const uint64_t* lanes) {
  const auto operands = [lanes](int lane) { return *reinterpret_cast<const MatrixOperands*>(lanes[lane]); };
  for (int m = 0; m < 4; ++m) {
    // Element (r, c) of matrix m, whose row r is where lane 8 m + r says.
    const auto at = [&](int r, int c) { return unsigned{operands(8 * m + r).row[c]}; };
    for (int lane = 0; lane < 32; ++lane) {
      const int i = lane / 4, j = lane % 4 * 2;
      operands(lane).matrices[m] = kTransposed ? at(j, i) | at(j + 1, i) << 16 : at(i, j) | at(i, j + 1) << 16;
    }
  }
}

// As in cuda/mma.h. A row that is not aligned to 16 bytes is a trap of the process, as ldmatrix would fault.
template <bool kTransposed, typename T>
void LoadMatrices(const T* row, unsigned (&matrices)[4]) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) __builtin_trap();
  // The lane's operands stay on its stack while it waits.
  const MatrixOperands own = {reinterpret_cast<const uint16_t*>(row), matrices};
  EmulatedBlock::Current().RunTogether(reinterpret_cast<uint64_t>(&own), std::source_location::current(),
                                       LoadMatricesOfWarp<kTransposed>);
}

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_MMA_H_
