// SPDX-License-Identifier: Apache-2.0
//
// The float8 formats that nothing here computes in, only carries: fnuz of AMD's GPUs and e8m0, the scales of MX
// formats. Plain loops over a table of 256 values; the rounding is PyTorch's. Not for callers outside tensor/.
#ifndef FSDP_TENSOR_RARE_FLOATS_H_
#define FSDP_TENSOR_RARE_FLOATS_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu.
bool IsRareFloat(DType dtype);

// Exact; codes of NaN give NaN.
void RareFloatsToFloat32(DType from, const void* source, float* destination, int64_t numel);

// To the nearest, ties to even. NaN, infinity and what is too large become NaN. Of fnuz, negative numbers too small
// become 0; e8m0 takes magnitudes, its smallest, 2^-127, for those below it.
void Float32ToRareFloats(const float* source, DType to, void* destination, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_TENSOR_RARE_FLOATS_H_
