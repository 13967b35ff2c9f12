// SPDX-License-Identifier: Apache-2.0
//
// The plain loops of convert_elements.h in which an integer dtype or bool takes part. Elements may be at any address.
// Not for callers outside tensor/.
#ifndef FSDP_TENSOR_CONVERT_INTEGERS_H_
#define FSDP_TENSOR_CONVERT_INTEGERS_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// Modulo 2^n; to bool: 1 for all but 0. In place if both dtypes have one size.
void ConvertIntegers(DType from, const void* source, DType to, void* destination, int64_t numel);

// To the nearest value, ties to even. In place if both dtypes have one size.
void IntegersToFloat32(DType from, const void* source, float* destination, int64_t numel);
void IntegersToFloat64(DType from, const void* source, double* destination, int64_t numel);

// Rounds towards zero; to bool: 1 for all but 0, NaN included. Stops at the first element whose truncated value the
// dtype cannot hold (NaN and infinity too) and returns its index; returns `numel` if all fit. Elements before it are
// converted.
int64_t Float64ToIntegers(const double* source, DType to, void* destination, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_TENSOR_CONVERT_INTEGERS_H_
