// SPDX-License-Identifier: Apache-2.0
//
// Decoding is a table of 256 values for each format, made on first use. Encoding to fnuz searches that table: positive
// codes grow with their values, so the nearest value is one of two neighbours, and a tie goes to the even code. Slow
// and obviously right, which suits formats that are only stored and converted. e8m0 is a float32's exponent byte.

#include "fsdp/tensor/rare_floats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

constexpr uint8_t kFnuzNan = 0x80;
constexpr uint8_t kE8M0Nan = 0xFF;

using Values = std::array<float, 256>;  // by code

Values ValuesOfFnuz(int mantissa_bits, int bias) {
  Values values;
  // Only the codes with sign 0; the negative ones mirror them, except that -0 is the code of NaN.
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> mantissa_bits;
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
    values[code] = std::ldexp(static_cast<float>(significand), std::max(exponent, 1) - bias - mantissa_bits);
    values[code + 128] = -values[code];
  }
  values[kFnuzNan] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

Values ValuesOfE8M0() {
  Values values;
  for (int code = 0; code < kE8M0Nan; ++code) values[code] = std::ldexp(1.0f, code - 127);
  values[kE8M0Nan] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

const Values& ValuesOf(DType dtype) {
  static const Values e4m3 = ValuesOfFnuz(3, 8);
  static const Values e5m2 = ValuesOfFnuz(2, 16);
  static const Values e8m0 = ValuesOfE8M0();
  Check(IsRareFloat(dtype), "no rare float");
  return dtype == DType::kFloat8E4M3FNUZ ? e4m3 : dtype == DType::kFloat8E5M2FNUZ ? e5m2 : e8m0;
}

// Positive numbers grow with their codes, so the nearest is one of two neighbours. float64 holds their middle.
uint8_t EncodeFnuz(float value, const Values& values) {
  const float magnitude = std::abs(value);
  const auto* const above = std::upper_bound(values.begin(), values.begin() + 128, magnitude);
  const auto below = static_cast<int>(above - values.begin()) - 1;  // >= 0, because values[0] is 0; 127 for NaN too
  if (std::isnan(value)) return kFnuzNan;
  const double step = below == 127 ? double{values[127]} - values[126] : double{values[below + 1]} - values[below];
  const double middle = values[below] + step / 2;
  const bool up = magnitude > middle || (magnitude == middle && below % 2 == 1);
  const int code = below + (up ? 1 : 0);
  if (code > 127) return kFnuzNan;
  return static_cast<uint8_t>(code != 0 && std::signbit(value) ? code + 128 : code);
}

// Computed on the bits: the exponent, rounded by the mantissa. A tie rounds up, except for a subnormal.
uint8_t EncodeE8M0(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = bits >> 23 & 0xFF;
  const uint32_t mantissa = bits & 0x7FFFFF;
  if (exponent == kE8M0Nan) return kE8M0Nan;
  const bool up = mantissa > 0x400000 || (mantissa == 0x400000 && exponent > 0);
  return static_cast<uint8_t>(exponent + (up ? 1 : 0));
}

}  // namespace

bool IsRareFloat(DType dtype) {
  return dtype == DType::kFloat8E4M3FNUZ || dtype == DType::kFloat8E5M2FNUZ || dtype == DType::kFloat8E8M0FNU;
}

void RareFloatsToFloat32(DType from, const void* source, float* destination, int64_t numel) {
  const Values& values = ValuesOf(from);
  const auto* const codes = static_cast<const uint8_t*>(source);
  for (int64_t i = 0; i < numel; ++i) destination[i] = values[codes[i]];
}

void Float32ToRareFloats(const float* source, DType to, void* destination, int64_t numel) {
  const Values& values = ValuesOf(to);
  auto* const codes = static_cast<uint8_t*>(destination);
  for (int64_t i = 0; i < numel; ++i) {
    codes[i] = to == DType::kFloat8E8M0FNU ? EncodeE8M0(source[i]) : EncodeFnuz(source[i], values);
  }
}

}  // namespace fsdp
