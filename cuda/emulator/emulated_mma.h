// SPDX-License-Identifier: Apache-2.0
//
// The operations of cuda/mma.h without tensor cores, from the tables of fragments in PTX's manual (mma.m16n8k16 and
// ldmatrix): the last lane to arrive gathers all fragments into matrices, multiplies, and distributes the results.
// Products are exact in float32; sums are in the order of k, while a tensor core has its own order.
#ifndef FSDP_CUDA_EMULATOR_EMULATED_MMA_H_
#define FSDP_CUDA_EMULATOR_EMULATED_MMA_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <type_traits>

#include "fsdp/cuda/emulator/block.h"
#include "fsdp/cuda/emulator/source_place.h"

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

// The addresses of a lane's operands and results. The last lane to arrive does the work of all.
struct MmaOperands {
  const MmaA* a;
  const MmaB* b;
  float* c;
};

// The tables. a (16 x 16): lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) + {0, 1} and the same + 8. b (16 x
// 8): those columns as rows, in column l / 4. c (16 x 8): rows as for a, columns 2 (l % 4) + {0, 1}. `lanes` are the 32
// addresses of the lanes' MmaOperands.
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

// c += a b for the warp; every lane must call. The first lanes wait until the last one has arrived, which reads and
// writes c.
template <typename T>
void MultiplyAdd(const MmaA& a, const MmaB& b, float (&c)[4]) {
  const MmaOperands own = {&a, &b, c};
  EmulatedBlock::Current().RunTogether(reinterpret_cast<uint64_t>(&own), SourcePlace::current(), MultiplyAddOfWarp<T>);
}

template <typename T>
unsigned RoundPair(float first, float second) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(first).bits | unsigned{__float2half_rn(second).bits} << 16;
  } else {
    return __float2bfloat16_rn(first).bits | unsigned{__float2bfloat16_rn(second).bits} << 16;
  }
}

// A lane's row of shared memory, and the destination of its four registers. `row` has 8 elements; `matrices` has room
// for 4 registers.
struct MatrixOperands {
  const uint16_t* row;
  unsigned* matrices;
};

// Lane l gets elements (l / 4, 2 (l % 4)) and the next one of each of the four matrices, or of the transposed matrices.
template <bool kTransposed>
void LoadMatricesOfWarp(const uint64_t* lanes) {
  const auto operands = [lanes](int lane) { return *reinterpret_cast<const MatrixOperands*>(lanes[lane]); };
  for (int m = 0; m < 4; ++m) {
    // Element (r, c) of matrix m; lane 8 m + r has the address of row r.
    const auto at = [&](int r, int c) { return unsigned{operands(8 * m + r).row[c]}; };
    for (int lane = 0; lane < 32; ++lane) {
      const int i = lane / 4, j = lane % 4 * 2;
      operands(lane).matrices[m] = kTransposed ? at(j, i) | at(j + 1, i) << 16 : at(i, j) | at(i, j + 1) << 16;
    }
  }
}

// See cuda/mma.h. A row that is not aligned to 16 bytes traps the process, as ldmatrix would fault.
template <bool kTransposed, typename T>
void LoadMatrices(const T* row, unsigned (&matrices)[4]) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) __builtin_trap();
  // The lane's operands stay on its stack while it waits.
  const MatrixOperands own = {reinterpret_cast<const uint16_t*>(row), matrices};
  EmulatedBlock::Current().RunTogether(reinterpret_cast<uint64_t>(&own), SourcePlace::current(),
                                       LoadMatricesOfWarp<kTransposed>);
}

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_EMULATED_MMA_H_
