// SPDX-License-Identifier: Apache-2.0
//
// RowStatistic: how a kernel of norms holds a statistic of a row, a mean or a reciprocal standard deviation, that all
// elements of the row are combined with. float32 rows sum in float64 and hold the statistic as two float32, since an
// error in it is the same in all elements and does not average out in the sums that follow (nn/host/host_norm.cc);
// elements need no conversion for it, and double-precision units are few on most GPUs. 16-bit rows sum in float32 and
// hold a float32: its error is far below the error of a rounding to 16 bits. For .cu files.
#ifndef FSDP_NN_CUDA_CUDA_SPLIT_H_
#define FSDP_NN_CUDA_CUDA_SPLIT_H_

#include <cuda_runtime.h>

#include <type_traits>

namespace fsdp {

// The type of sums over a row of T.
template <typename T>
using RowSumType = std::conditional_t<std::is_same_v<T, float>, double, float>;

// Sum is a RowSumType.
template <typename Sum>
struct RowStatistic;

// high is `value` rounded to float32, low the rest, rounded: together about 48 bits.
template <>
struct RowStatistic<double> {
  __device__ explicit RowStatistic(double value)
      : high(static_cast<float>(value)), low(static_cast<float>(value - static_cast<double>(high))) {}
  // v - value, and v * value, each within a rounding or two of float32.
  __device__ float SubtractFrom(float v) const { return (v - high) - low; }
  __device__ float Times(float v) const { return fmaf(v, high, v * low); }

  float high;
  float low;
};

template <>
struct RowStatistic<float> {
  __device__ explicit RowStatistic(float value) : value(value) {}
  __device__ float SubtractFrom(float v) const { return v - value; }
  __device__ float Times(float v) const { return v * value; }

  float value;
};

// 1 / sqrt(value).
__device__ inline double ReciprocalRoot(double value) { return 1 / sqrt(value); }
__device__ inline float ReciprocalRoot(float value) { return rsqrtf(value); }

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_SPLIT_H_
