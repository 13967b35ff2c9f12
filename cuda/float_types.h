// SPDX-License-Identifier: Apache-2.0
//
// The floating-point types of CUDA kernels: their conversions, and from a DType to the type. Kernels are templates over
// T = float, __nv_bfloat16, __half or double and compute in a wider C. For .cu files.
#ifndef FSDP_CUDA_FLOAT_TYPES_H_
#define FSDP_CUDA_FLOAT_TYPES_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// `value` in the type C, float or wider, exactly. NaN and infinity come through.
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

// `value` as a T would hold it, in float32. For a kernel that must round where PyTorch stores an intermediate value.
template <typename T>
__device__ inline float RoundTo(float value) {
  return Widen<float>(Round<T>(value));
}

// A type as a value, for generic lambdas. auto parameters deduce it: `using T = typename decltype(tag)::Type;`.
template <typename T>
struct TypeTag {
  using Type = T;
};

// Calls `f` with the tag of float32's or bfloat16's type, the dtypes of activations. Any dtype but bfloat16 is taken
// for float32: CheckedLayerOps has refused the others, float16 too.
template <typename F>
auto WithActivationType(DType dtype, F f) {
  // Each call compiles `f` twice.
  if (dtype == DType::kBFloat16) return f(TypeTag<__nv_bfloat16>());
  return f(TypeTag<float>());
}

}  // namespace fsdp

#endif  // FSDP_CUDA_FLOAT_TYPES_H_
