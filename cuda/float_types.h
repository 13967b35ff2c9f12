// SPDX-License-Identifier: Apache-2.0
//
// The floating-point types of CUDA kernels: their conversions, and the type of a DType. Kernels are templates over T =
// float, __nv_bfloat16, __half or double and compute in a wider C. For .cu files.
#ifndef FSDP_CUDA_FLOAT_TYPES_H_
#define FSDP_CUDA_FLOAT_TYPES_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "fsdp/cuda/pack.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// `value` in the type C, float or wider, exactly. NaN and infinity are preserved.
template <typename C, typename T>
__device__ inline C Widen(T value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else {
    return value;
  }
}

// `value` rounded to the nearest T, ties to even; from float64 to a 16-bit float through float32, as the host and
// PyTorch do. Overflow gives infinity; NaN stays NaN.
template <typename T, typename C>
__device__ inline T Round(C value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// The 32 bits of a pair, the second element in the upper half, as a float32.
__device__ inline float AsFloat(__nv_bfloat162 pair) {
  unsigned bits;
  memcpy(&bits, &pair, sizeof(bits));
  return __uint_as_float(bits);
}

// `value` rounded to T, in float32. For a kernel that must round as PyTorch does when it stores an intermediate value.
template <typename T>
__device__ inline float RoundTo(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    // One instruction: as the upper half of a pair, a bfloat16 has the bits of its float32.
    return AsFloat(__floats2bfloat162_rn(0.0f, value));
  } else {
    return Widen<float>(Round<T>(value));
  }
}

// The elements of `pack` in float32, exactly. Pairs of 16-bit elements are split as one word.
template <typename T, int N>
__device__ inline void WidenPack(const Pack<T, N>& pack, float (&to)[N]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16> && N % 2 == 0) {
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      unsigned pair;
      memcpy(&pair, &pack.at[k], sizeof(pair));
      to[k] = __uint_as_float(pair << 16);
      to[k + 1] = __uint_as_float(pair & 0xffff0000u);
    }
  } else if constexpr (std::is_same_v<T, __half> && N % 2 == 0) {
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      __half2 pair;
      memcpy(&pair, &pack.at[k], sizeof(pair));
      to[k] = __low2float(pair);
      to[k + 1] = __high2float(pair);
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = Widen<float>(pack.at[k]);
  }
}

// `values` rounded as Round does; in pairs if there is an instruction for a pair.
template <typename T, int N>
__device__ inline Pack<T, N> RoundPack(const float (&values)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if constexpr (std::is_same_v<T, __nv_bfloat16> && N % 2 == 0) {
      if (k % 2 == 0) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[k], values[k + 1]);
        memcpy(&pack.at[k], &pair, sizeof(pair));
      }
    } else {
      pack.at[k] = Round<T>(values[k]);
    }
  }
  return pack;
}

// A type as a value, for generic lambdas. auto parameters deduce it: `using T = typename decltype(tag)::Type;`.
template <typename T>
struct TypeTag {
  using Type = T;
};

// Calls `f` with the tag of the type of a float32, bfloat16 or float16 activation. Any other dtype counts as float32;
// LayerOps has refused it. Each call compiles `f` three times.
template <typename F>
auto WithActivationType(DType dtype, F f) {
  if (dtype == DType::kBFloat16) return f(TypeTag<__nv_bfloat16>());
  if (dtype == DType::kFloat16) return f(TypeTag<__half>());
  return f(TypeTag<float>());
}

}  // namespace fsdp

#endif  // FSDP_CUDA_FLOAT_TYPES_H_
