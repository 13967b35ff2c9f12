// SPDX-License-Identifier: Apache-2.0
//
// Float16Bits: an element of float16 in memory, for kernels that are templates over element types. It needs a distinct
// type because those kernels use uint16_t for bfloat16. It computes nothing; tensor/convert_elements.h has its value.
#ifndef FSDP_TENSOR_FLOAT16_BITS_H_
#define FSDP_TENSOR_FLOAT16_BITS_H_

#include <cstdint>

namespace fsdp {

enum class Float16Bits : uint16_t {};

}  // namespace fsdp

#endif  // FSDP_TENSOR_FLOAT16_BITS_H_
