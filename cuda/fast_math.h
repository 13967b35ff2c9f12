// SPDX-License-Identifier: Apache-2.0
//
// The special functions of a GPU, one instruction each: a few units in the last place of float32, which is far below
// the rounding to a 16-bit float, and without the branches and calls of the accurate functions. Arguments and results
// below 2^-126 count as 0. For kernels whose results are rounded to 16 bits; .cu files only. The emulator computes them
// accurately, with the same treatment of small numbers.
#ifndef FSDP_CUDA_FAST_MATH_H_
#define FSDP_CUDA_FAST_MATH_H_

#include <cuda_runtime.h>

#ifndef __CUDACC__
#include <cmath>
#include <limits>
#endif

namespace fsdp {

#ifdef __CUDACC__

// 2^x. Infinity from x = 128, 0 below x = -126; NaN passes.
__device__ inline float FastExp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / x. 0 for |x| above 2^126, infinity for 0; NaN passes.
__device__ inline float FastReciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#else

inline float FlushSmall(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
inline float FastExp2(float x) { return FlushSmall(exp2f(FlushSmall(x))); }
inline float FastReciprocal(float x) { return FlushSmall(1 / FlushSmall(x)); }

#endif

// 1 / x to a unit in the last place, for x of at least 1: a step of Newton's method. 0 above 2^126.
__device__ inline float Reciprocal(float x) {
  const float r = FastReciprocal(x);
  return fmaf(r, fmaf(-x, r, 1.0f), r);
}

}  // namespace fsdp

#endif  // FSDP_CUDA_FAST_MATH_H_
