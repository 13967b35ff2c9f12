// SPDX-License-Identifier: Apache-2.0
//
// The vectorised loops over floats, on plain memory and on the calling thread: float dtype to float dtype for
// convert_elements.h, and the host's TensorOps. Not for callers outside tensor/.
#ifndef FSDP_TENSOR_FLOAT_KERNELS_H_
#define FSDP_TENSOR_FLOAT_KERNELS_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// The elements of one dtype at `data`, which may be unaligned; their number is a parameter of each function.
struct ConstElements {
  DType dtype;
  const void* data;
};
struct MutableElements {
  DType dtype;
  void* data;
};

// Converts `numel` elements between two different float dtypes, any of the six that are not rare (rare_floats.h);
// alignment and overlap as in Convert.
void ConvertFloats(DType from, const void* source, DType to, void* destination, int64_t numel);

// The functions below have the contracts of their namesakes in ops.h, take float64, float32, bfloat16 and float16, and
// give the same bits on every instruction set. They check nothing. `numel` elements; source and destination may be one.
void CastDivideFloats(ConstElements source, MutableElements destination, int64_t numel, double divisor);
void AccumulateFloats(ConstElements source, MutableElements destination, int64_t numel);
void ScaleFloats(MutableElements t, int64_t numel, float factor);
// The sum of squares in float64, in a fixed order.
double SquaredNormOfFloats(ConstElements source, int64_t numel);
// False if an element is infinite or NaN.
bool AllFinite(ConstElements t, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_TENSOR_FLOAT_KERNELS_H_
