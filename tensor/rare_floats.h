// SPDX-License-Identifier: Apache-2.0
//
// The float8 formats that are only stored and converted, never computed in: fnuz of AMD's GPUs and e8m0, the scales of
// MX formats. Plain loops over a table of 256 values; the rounding is PyTorch's. Not for callers outside tensor/.
#ifndef FSDP_TENSOR_RARE_FLOATS_H_
#define FSDP_TENSOR_RARE_FLOATS_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu.
bool IsRareFloat(DType dtype);

// Exact; codes of NaN give NaN.
void RareFloatsToFloat32(DType from, const void* source, float* destination, int64_t numel);

// To nearest, ties to even. NaN, infinity and values that are too large become NaN. In fnuz, negative numbers that are
// too small become 0. e8m0 takes magnitudes; those below its smallest, 2^-127, become that.
void Float32ToRareFloats(const float* source, DType to, void* destination, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_TENSOR_RARE_FLOATS_H_
