// SPDX-License-Identifier: Apache-2.0
//
// Templates make a loop for each pair of types: WithInteger turns a DType into a C++ type, twice for a pair. The loops
// read and write elements by memcpy, because elements of a file may be at any address; compilers make plain moves of
// it. Not vectorised by hand: integers are token tables and step counters, never the bulk of a checkpoint.

#include "fsdp/tensor/convert_integers.h"

#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

// A bool's byte, which may hold anything when it comes from a file.
struct Bool {
  uint8_t byte;
};

// Calls `f` with a value of the C++ type of `dtype`.
template <typename F>
auto WithInteger(DType dtype, F f) {
  switch (dtype) {
    case DType::kInt64:
      return f(int64_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kUInt64:
      return f(uint64_t{});
    case DType::kUInt32:
      return f(uint32_t{});
    case DType::kUInt16:
      return f(uint16_t{});
    case DType::kUInt8:
      return f(uint8_t{});
    case DType::kBool:
      return f(Bool{});
    default:
      CheckFailed("an integer loop for a float dtype", __FILE__, __LINE__);
  }
}

template <typename T>
T LoadAt(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void StoreAt(T value, void* data, int64_t i) {
  std::memcpy(static_cast<std::byte*>(data) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename To, typename From>
To Cast(From value) {
  if constexpr (std::is_same_v<From, Bool>) {
    return Cast<To>(static_cast<uint8_t>(value.byte != 0 ? 1 : 0));
  } else if constexpr (std::is_same_v<To, Bool>) {
    return Bool{static_cast<uint8_t>(value != 0 ? 1 : 0)};
  } else {
    return static_cast<To>(value);
  }
}

template <typename From, typename To>
void CastAll(const void* source, void* destination, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) StoreAt(Cast<To>(LoadAt<From>(source, i)), destination, i);
}

// Whether `value`, truncated, is a value of To; false for NaN. The bounds are powers of two or zero, which float64
// holds exactly, unlike the largest int64. One below `begin` is exact too, or rounds to `begin`, which fits.
template <typename To>
bool Fits(double value) {
  using Limits = std::numeric_limits<To>;
  constexpr double kHalf = static_cast<double>(uint64_t{1} << (Limits::digits - 1));
  constexpr double kEnd = 2 * kHalf;
  constexpr double kBegin = Limits::is_signed ? -kEnd : 0.0;
  return (value > kBegin - 1 || value == kBegin) && value < kEnd;
}

}  // namespace

void ConvertIntegers(DType from, const void* source, DType to, void* destination, int64_t numel) {
  WithInteger(from, [&](auto from_tag) {
    WithInteger(to, [&](auto to_tag) { CastAll<decltype(from_tag), decltype(to_tag)>(source, destination, numel); });
  });
}

void IntegersToFloat32(DType from, const void* source, float* destination, int64_t numel) {
  WithInteger(from, [&](auto tag) { CastAll<decltype(tag), float>(source, destination, numel); });
}

void IntegersToFloat64(DType from, const void* source, double* destination, int64_t numel) {
  WithInteger(from, [&](auto tag) { CastAll<decltype(tag), double>(source, destination, numel); });
}

int64_t Float64ToIntegers(const double* source, DType to, void* destination, int64_t numel) {
  return WithInteger(to, [&](auto tag) {
    using To = decltype(tag);
    for (int64_t i = 0; i < numel; ++i) {
      if constexpr (std::is_same_v<To, Bool>) {
        StoreAt(Cast<Bool>(source[i]), destination, i);
      } else {
        if (!Fits<To>(source[i])) return i;
        StoreAt(static_cast<To>(source[i]), destination, i);
      }
    }
    return numel;
  });
}

}  // namespace fsdp
