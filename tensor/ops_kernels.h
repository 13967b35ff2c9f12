// SPDX-License-Identifier: Apache-2.0
//
// The loops behind the host's TensorOps, on plain memory and on the calling thread. Contracts are those of ops.h; all
// dtypes are float64, float32, bfloat16 or float16. Not for callers outside tensor/.
#ifndef FSDP_TENSOR_OPS_KERNELS_H_
#define FSDP_TENSOR_OPS_KERNELS_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// A run of elements of one dtype, aligned or not.
struct ConstElements {
  DType dtype;
  const void* data;
};
struct Elements {
  DType dtype;
  void* data;
};

void CastDivideFloats(ConstElements source, Elements destination, int64_t numel, double divisor);
void AccumulateFloats(ConstElements source, Elements destination, int64_t numel);
void ScaleFloats(Elements t, int64_t numel, float factor);
double SquaredNormOfFloats(ConstElements source, int64_t numel);
bool AllFinite(ConstElements t, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_TENSOR_OPS_KERNELS_H_
