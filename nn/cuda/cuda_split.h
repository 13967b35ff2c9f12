// SPDX-License-Identifier: Apache-2.0
//
// CudaSplit: a float64 as two float32, for the norms: arithmetic of float32 elements with a float64 statistic, without
// a conversion of each element, and double-precision units are few on most GPUs. As Split in nn/host/host_norm.cc,
// which says why one float32 is not enough. For .cu files.
#ifndef FSDP_NN_CUDA_CUDA_SPLIT_H_
#define FSDP_NN_CUDA_CUDA_SPLIT_H_

#include <cuda_runtime.h>

namespace fsdp {

struct CudaSplit {
  // high is `value` rounded to float32, low the rest, rounded: together about 48 bits.
  __device__ explicit CudaSplit(double value)
      : high(static_cast<float>(value)), low(static_cast<float>(value - static_cast<double>(high))) {}
  // v - value, and v * value, each within a rounding or two of float32.
  __device__ float SubtractFrom(float v) const { return (v - high) - low; }
  __device__ float Times(float v) const { return fmaf(v, high, v * low); }

  float high;
  float low;
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_SPLIT_H_
