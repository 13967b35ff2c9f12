// SPDX-License-Identifier: Apache-2.0
//
// Conversion of elements between dtypes on the host, bit for bit as PyTorch's Tensor.to() on a CPU: round to nearest
// even, NaN stays NaN (payload unspecified), overflow becomes infinity. float8_e4m3fn does not have an infinity;
// overflow there becomes the largest number, 448 (as PyTorch 2.15; it gave NaN up to 2025). Narrowing from float64 to a
// 16- or 8-bit float rounds once through float32, as PyTorch does. fnuz and e8m0 are plain loops (rare_floats.h); all
// else is vectorised with run-time dispatch (AVX-512, AVX2, scalar); every target gives the same bits.
#ifndef FSDP_TENSOR_CONVERT_ELEMENTS_H_
#define FSDP_TENSOR_CONVERT_ELEMENTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// Converts `numel` elements. `source` and `destination` may be unaligned and must not overlap, unless they are equal
// and both dtypes have one size. Float to float, float to and from integers and bool, integer to integer (modulo 2^n,
// as PyTorch); complex to complex by parts, and real to complex with imaginary part 0. Returns kInvalidArgument, naming
// the element, for a float that an integer dtype cannot hold (NaN, infinity, out of range; PyTorch's result is
// undefined), and for a complex number with an imaginary part that a real dtype would lose. The contents of the
// destination are then unspecified. A packed dtype converts only to itself, since its elements are not single numbers;
// to and from any other is kInvalidArgument, too.
absl::Status Convert(DType from, const void* source, DType to, void* destination, int64_t numel);

// The 2 * `numel` numbers of `numel` elements of a packed dtype, in order: exact.
void UnpackFloats(DType packed, const void* source, double* destination, int64_t numel);

// Convert a single element by the same rules; for tests and small values.
float BFloat16ToFloat(uint16_t bits);
uint16_t FloatToBFloat16(float value);
float Float16ToFloat(uint16_t bits);
uint16_t FloatToFloat16(float value);

}  // namespace fsdp

#endif  // FSDP_TENSOR_CONVERT_ELEMENTS_H_
