// SPDX-License-Identifier: Apache-2.0
//
// Float16Bits: an element of float16 in memory, for kernels that are templates over the types of elements. It is a type
// of its own because uint16_t is that of bfloat16 there. It computes nothing; tensor/convert.h has its value.
#ifndef FSDP_TENSOR_FLOAT16_BITS_H_
#define FSDP_TENSOR_FLOAT16_BITS_H_

#include <cstdint>

namespace fsdp {

enum class Float16Bits : uint16_t {};

}  // namespace fsdp

#endif  // FSDP_TENSOR_FLOAT16_BITS_H_
