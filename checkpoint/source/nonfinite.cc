// SPDX-License-Identifier: Apache-2.0
//
// Verification counts while it digests, at several GB/s, so counting must not cost an extra pass: elements are not
// converted to float but compared as integers, which compilers vectorise. Without the sign bit the codes of floats are
// ordered by magnitude, infinity has the exponent of all ones and a mantissa of 0, and every code above that is a NaN
// (IEEE 754, 3.4). Some float8 types (OCP 8-bit floating point, and the FNUZ variants) have no infinity, and some have
// exactly one code for NaN, which is counted directly.
#include "fsdp/checkpoint/source/nonfinite.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace fsdp {
namespace {

// Elements are codes of type `Bits`; `kMask` selects the magnitude. A magnitude above `kInfinity` is NaN, and
// `kInfinity` itself is infinite, or, without kHasInfinity, the largest number.
template <typename Bits, Bits kMask, Bits kInfinity, bool kHasInfinity = true>
NonFinite Count(const std::byte* data, int64_t numel) {
  NonFinite total;
  // Only counters as wide as the elements let the compiler vectorise the loop. Runs are short enough that they cannot
  // overflow.
  constexpr int64_t kRun = sizeof(Bits) == 1 ? 255 : 16384;
  for (int64_t begin = 0; begin < numel; begin += kRun) {
    Bits nan = 0;
    Bits inf = 0;
    const int64_t end = std::min(begin + kRun, numel);
    for (int64_t i = begin; i < end; ++i) {
      Bits code;
      std::memcpy(&code, data + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
      const Bits magnitude = code & kMask;
      nan = static_cast<Bits>(nan + (magnitude > kInfinity ? 1 : 0));
      inf = static_cast<Bits>(inf + (magnitude == kInfinity ? 1 : 0));
    }
    total.nan += static_cast<int64_t>(nan);
    total.inf += kHasInfinity ? static_cast<int64_t>(inf) : 0;
  }
  return total;
}

}  // namespace

NonFinite CountNonFinite(DType dtype, const void* data, int64_t numel) {
  const auto* bytes = static_cast<const std::byte*>(data);
  switch (dtype) {
    case DType::kFloat64:
      return Count<uint64_t, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000>(bytes, numel);
    case DType::kFloat32:
      return Count<uint32_t, 0x7FFFFFFF, 0x7F800000>(bytes, numel);
    case DType::kBFloat16:
      return Count<uint16_t, 0x7FFF, 0x7F80>(bytes, numel);
    case DType::kFloat16:
      return Count<uint16_t, 0x7FFF, 0x7C00>(bytes, numel);
    case DType::kFloat8E5M2:
      return Count<uint8_t, 0x7F, 0x7C>(bytes, numel);
    case DType::kFloat8E4M3FN:  // 0x7E is its largest number
      return Count<uint8_t, 0x7F, 0x7E, /*kHasInfinity=*/false>(bytes, numel);
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2FNUZ:
      return {std::count(bytes, bytes + numel, std::byte{0x80}), 0};
    case DType::kFloat8E8M0FNU:
      return {std::count(bytes, bytes + numel, std::byte{0xFF}), 0};
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
      return CountNonFinite(PartOf(dtype), data, 2 * numel);
    default:
      return {};
  }
}

}  // namespace fsdp
