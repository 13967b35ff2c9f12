// SPDX-License-Identifier: Apache-2.0
//
// Chooses the loops that convert from one dtype to another. Float to float is vectorised (float_kernels.h); every other
// conversion combines that with plain loops, tile by tile through a buffer on the stack, so that no conversion
// allocates memory:
//
//   float  -> rare float     float32 tile, then rare_floats.h         (and the other way)
//   int    -> float          float32 tile, then as above              float64 and float32 directly
//   float  -> int            float64 tile, then convert_integers.h    which stops at a value that does not fit
//   real   -> complex        a tile of the part, spread out           imaginary parts 0
//   complex -> real          a tile of both parts                     stops at an imaginary part that is not 0
//
// Every step rounds exactly as PyTorch does, which may be twice: float64 to a 16-bit float goes through float32. In
// place works for equal sizes because a tile is read before it is written.

#include "fsdp/tensor/convert_elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_integers.h"
#include "fsdp/tensor/float_kernels.h"
#include "fsdp/tensor/rare_floats.h"

namespace fsdp {
namespace {

// Elements that are converted at a time through a local buffer: float64 values for half of the first-level cache.
constexpr int64_t kTile = 2048;

const std::byte* At(const void* data, DType dtype, int64_t element) {
  return static_cast<const std::byte*>(data) + element * SizeOf(dtype);
}
std::byte* At(void* data, DType dtype, int64_t element) {
  return static_cast<std::byte*>(data) + element * SizeOf(dtype);
}

absl::Status DoesNotFit(DType from, DType to, int64_t element, int64_t numel, const std::string& value) {
  return absl::InvalidArgumentError(absl::StrCat("element ", element, " of ", numel, ": ", std::string(DTypeName(from)),
                                                 " value ", value, " does not fit in ", std::string(DTypeName(to))));
}

// Float to float of any two formats; the rare ones through float32.
void ConvertAnyFloats(DType from, const void* source, DType to, void* destination, int64_t numel) {
  if (from == to) {
    std::memcpy(destination, source, numel * SizeOf(from));
    return;
  }
  if (!IsRareFloat(from) && !IsRareFloat(to)) return ConvertFloats(from, source, to, destination, numel);
  float tile[kTile];
  for (int64_t i = 0; i < numel; i += kTile) {
    const int64_t n = std::min(kTile, numel - i);
    if (IsRareFloat(from)) {
      RareFloatsToFloat32(from, At(source, from, i), tile, n);
    } else {
      ConvertAnyFloats(from, At(source, from, i), DType::kFloat32, tile, n);
    }
    if (IsRareFloat(to)) {
      Float32ToRareFloats(tile, to, At(destination, to, i), n);
    } else {
      ConvertAnyFloats(DType::kFloat32, tile, to, At(destination, to, i), n);
    }
  }
}

// Integers to a narrow float round to float32 first, as PyTorch does.
void ConvertIntegersToFloats(DType from, const void* source, DType to, void* destination, int64_t numel) {
  if (to == DType::kFloat64) return IntegersToFloat64(from, source, static_cast<double*>(destination), numel);
  if (to == DType::kFloat32) return IntegersToFloat32(from, source, static_cast<float*>(destination), numel);
  float tile[kTile];
  for (int64_t i = 0; i < numel; i += kTile) {
    const int64_t n = std::min(kTile, numel - i);
    IntegersToFloat32(from, At(source, from, i), tile, n);
    ConvertAnyFloats(DType::kFloat32, tile, to, At(destination, to, i), n);
  }
}

// All floats go through float64, which holds each of them exactly.
absl::Status ConvertFloatsToIntegers(DType from, const void* source, DType to, void* destination, int64_t numel) {
  double tile[kTile];
  for (int64_t i = 0; i < numel; i += kTile) {
    const int64_t n = std::min(kTile, numel - i);
    ConvertAnyFloats(from, At(source, from, i), DType::kFloat64, tile, n);
    const int64_t converted = Float64ToIntegers(tile, to, At(destination, to, i), n);
    if (converted < n) return DoesNotFit(from, to, i + converted, numel, absl::StrCat(tile[converted]));
  }
  return absl::OkStatus();
}

// Each element becomes a real part before an imaginary part of 0.
absl::Status ConvertRealToComplex(DType from, const void* source, DType to, void* destination, int64_t numel) {
  const DType part = PartOf(to);
  const int64_t size = SizeOf(part);
  std::byte tile[kTile * sizeof(double)];
  for (int64_t i = 0; i < numel; i += kTile) {
    const int64_t n = std::min(kTile, numel - i);
    FSDP_RETURN_IF_ERROR(Convert(from, At(source, from, i), part, tile, n));
    std::byte* const out = At(destination, to, i);
    std::memset(out, 0, n * 2 * size);
    for (int64_t k = 0; k < n; ++k) std::memcpy(out + 2 * k * size, tile + k * size, size);
  }
  return absl::OkStatus();
}

absl::Status ConvertComplexToReal(DType from, const void* source, DType to, void* destination, int64_t numel) {
  double parts[kTile];
  double reals[kTile / 2];
  for (int64_t i = 0; i < numel; i += kTile / 2) {
    const int64_t n = std::min(kTile / 2, numel - i);
    ConvertAnyFloats(PartOf(from), At(source, from, i), DType::kFloat64, parts, 2 * n);
    int64_t converted = 0;
    for (; converted < n && parts[2 * converted + 1] == 0; ++converted) reals[converted] = parts[2 * converted];
    if (IsFloatingPoint(to)) {
      ConvertAnyFloats(DType::kFloat64, reals, to, At(destination, to, i), converted);
    } else {
      converted = Float64ToIntegers(reals, to, At(destination, to, i), converted);
    }
    if (converted == n) continue;
    const double* const number = parts + 2 * converted;
    return DoesNotFit(from, to, i + converted, numel, absl::StrCat("(", number[0], ", ", number[1], ")"));
  }
  return absl::OkStatus();
}

absl::Status ConvertComplex(DType from, const void* source, DType to, void* destination, int64_t numel) {
  if (!IsComplex(from)) return ConvertRealToComplex(from, source, to, destination, numel);
  if (!IsComplex(to)) return ConvertComplexToReal(from, source, to, destination, numel);
  ConvertAnyFloats(PartOf(from), source, PartOf(to), destination, 2 * numel);
  return absl::OkStatus();
}

}  // namespace

absl::Status Convert(DType from, const void* source, DType to, void* destination, int64_t numel) {
  if (numel < 0) return absl::InvalidArgumentError(absl::StrCat("cannot convert ", numel, " elements"));
  if (numel == 0) return absl::OkStatus();
  if (from == to) {
    if (source != destination) std::memcpy(destination, source, numel * SizeOf(from));
  } else if (IsPacked(from) || IsPacked(to)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot convert ", std::string(DTypeName(from)), " to ", std::string(DTypeName(to)),
                     ": an element of ", std::string(DTypeName(IsPacked(from) ? from : to)), " is two numbers"));
  } else if (IsComplex(from) || IsComplex(to)) {
    return ConvertComplex(from, source, to, destination, numel);
  } else if (IsFloatingPoint(from) && IsFloatingPoint(to)) {
    ConvertAnyFloats(from, source, to, destination, numel);
  } else if (IsFloatingPoint(from)) {
    return ConvertFloatsToIntegers(from, source, to, destination, numel);
  } else if (IsFloatingPoint(to)) {
    ConvertIntegersToFloats(from, source, to, destination, numel);
  } else {
    ConvertIntegers(from, source, to, destination, numel);
  }
  return absl::OkStatus();
}

void UnpackFloats(DType packed, const void* source, double* destination, int64_t numel) {
  Check(packed == DType::kFloat4E2M1FNx2, "no packed dtype");
  // e2m1: a sign, two bits of exponent and one of mantissa; no infinity and no NaN.
  constexpr std::array<double, 16> kValues = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  const auto* const bytes = static_cast<const uint8_t*>(source);
  for (int64_t i = 0; i < numel; ++i) {
    destination[2 * i] = kValues[bytes[i] & 0xF];
    destination[2 * i + 1] = kValues[bytes[i] >> 4];
  }
}

// The four functions below do not use the vectorised code's tricks, but the terms of the formats (sign, exponent,
// mantissa, dropped bits): the tests compare the two.

float BFloat16ToFloat(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  const bool is_nan = (wide & 0x7FFFFFFF) > 0x7F800000;
  return std::bit_cast<float>(is_nan ? wide | 0x00400000 : wide);
}

uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7FC0);
  const uint32_t dropped = bits & 0xFFFF;
  uint32_t kept = bits >> 16;
  if (dropped > 0x8000 || (dropped == 0x8000 && kept % 2 == 1)) ++kept;
  return static_cast<uint16_t>(kept);
}

float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t{bits} >> 15 << 31;
  const uint32_t exponent = bits >> 10 & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0x1F) {
    return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13 | (mantissa != 0 ? 0x00400000u : 0u));
  }
  // 2^-24 is the last place of subnormals.
  if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

uint16_t FloatToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 31 << 15;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent >= 16) return static_cast<uint16_t>(sign | 0x7C00);
  if (exponent < -25) return static_cast<uint16_t>(sign);  // below half of the smallest subnormal
  // Subnormals lose one more bit per exponent below -14, and have no implied leading 1 to take off.
  const bool subnormal = exponent < -14;
  const int shift = subnormal ? 13 - 14 - exponent : 13;
  const uint32_t mantissa = (magnitude & 0x007FFFFF) | 0x00800000;
  uint32_t kept = mantissa >> shift;
  const uint32_t dropped = mantissa & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  if (dropped > half || (dropped == half && kept % 2 == 1)) ++kept;
  if (!subnormal) kept += static_cast<uint32_t>(exponent + 15 - 1) << 10;
  return static_cast<uint16_t>(sign | kept);
}

}  // namespace fsdp
