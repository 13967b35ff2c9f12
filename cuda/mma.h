// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of tensor cores, a warp at a time: c [16, 8] += a [16, 16] b [16, 8], bfloat16 or float16 with
// float32 sums. A lane holds, with g = lane / 4 and t = lane % 4, the elements
//   c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// of the result. All lanes must call. For .cu files; the emulator has its own (emulator/mma.h).
#ifndef FSDP_CUDA_MMA_H_
#define FSDP_CUDA_MMA_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#ifndef __CUDACC__
#include "fsdp/cuda/emulator/emulated_mma.h"
#else

namespace fsdp {

// A lane's part of a and of b: pairs of 16-bit elements in registers, as LoadMatrices delivers them. The first element
// of a pair is in the lower 16 bits. PTX's manual has the tables for mma.m16n8k16.
struct MmaA {
  unsigned at[4];
};
struct MmaB {
  unsigned at[2];
};

// c += a b, with a and b of T, __nv_bfloat16 or __half. A tensor core adds the 16 products of an element in its own
// order, the same in every run. The products are exact; c is read and written.
template <typename T>
__device__ inline void MultiplyAdd(const MmaA& a, const MmaB& b, float (&c)[4]) {
  // An asm statement, because CUDA's own wmma hides which element a lane holds.
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
  } else {
    static_assert(std::is_same_v<T, __half>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
  }
}

// Two values rounded to T, in the format of a register of a or b.
template <typename T>
__device__ inline unsigned RoundPair(float first, float second) {
  unsigned bits;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    memcpy(&bits, &pair, sizeof(bits));
  } else {
    static_assert(std::is_same_v<T, __half>);
    const __half2 pair = __floats2half2_rn(first, second);
    memcpy(&bits, &pair, sizeof(bits));
  }
  return bits;
}

// Four 8 x 8 matrices of shared memory: each lane passes the address of a row, lanes 8 m to 8 m + 7 the rows of matrix
// m, each aligned to 16 bytes; it gets two elements of each matrix. kTransposed transposes each 8 x 8 matrix. The row
// of lane 8 m + r is row r of matrix m.
template <bool kTransposed, typename T>
__device__ inline void LoadMatrices(const T* row, unsigned (&matrices)[4]) {
  static_assert(sizeof(T) == 2);
  // ldmatrix takes an address of 32 bits within the shared memory.
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
  }
}

}  // namespace fsdp

#endif  // __CUDACC__
#endif  // FSDP_CUDA_MMA_H_
