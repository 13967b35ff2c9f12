// SPDX-License-Identifier: Apache-2.0
//
// The emulator's cuda_bf16.h: bfloat16 as the upper half of a float32. Conversion rounds to nearest even, and any NaN
// becomes 0x7fff, as on a GPU.
#ifndef FSDP_CUDA_EMULATOR_INCLUDE_CUDA_BF16_H_
#define FSDP_CUDA_EMULATOR_INCLUDE_CUDA_BF16_H_

#include <bit>
#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// The low half is `x`.
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif  // FSDP_CUDA_EMULATOR_INCLUDE_CUDA_BF16_H_
