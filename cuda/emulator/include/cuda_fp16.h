// SPDX-License-Identifier: Apache-2.0
//
// The emulator's cuda_fp16.h: float16 by arithmetic on values, slow and plain. Conversion rounds to nearest even, from
// 65520 on to infinity, and any NaN becomes 0x7fff, as on a GPU.
#ifndef FSDP_CUDA_EMULATOR_INCLUDE_CUDA_FP16_H_
#define FSDP_CUDA_EMULATOR_INCLUDE_CUDA_FP16_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

// Exact. Infinities and NaN are preserved; the payload of a NaN is not.
inline float __half2float(__half value) {
  const int exponent = value.bits >> 10 & 31;
  const int mantissa = value.bits & 1023;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                  : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  if (exponent == 31) magnitude = mantissa == 0 ? INFINITY : NAN;
  return std::copysign(magnitude, (value.bits & 0x8000) != 0 ? -1.0f : 1.0f);
}

inline float __low2float(__half2 pair) { return __half2float(pair.x); }
inline float __high2float(__half2 pair) { return __half2float(pair.y); }

inline __half __float2half_rn(float value) {
  if (std::isnan(value)) return {0x7fff};
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
  // In units of the last place, which nearbyint then rounds to even; below 2^-14 the unit is 2^-24.
  int exponent = magnitude == 0 ? -14 : std::max(std::ilogb(magnitude), -14);
  auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  // A subnormal has no implicit bit; rounding up to 2048 or 1024 carries into the exponent by itself.
  const uint32_t bits = (static_cast<uint32_t>(exponent + 14) << 10) + units;
  return {static_cast<uint16_t>(sign | bits)};
}

#endif  // FSDP_CUDA_EMULATOR_INCLUDE_CUDA_FP16_H_
