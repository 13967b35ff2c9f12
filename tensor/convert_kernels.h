// SPDX-License-Identifier: Apache-2.0
//
// The vectorised part of convert.h: float dtype to float dtype. Not for callers outside tensor/.
#ifndef FSDP_TENSOR_CONVERT_KERNELS_H_
#define FSDP_TENSOR_CONVERT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// Converts `numel` elements between two different float dtypes; alignment and overlap as in Convert.
void ConvertFloats(DType from, const void* source, DType to, void* destination, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_TENSOR_CONVERT_KERNELS_H_
