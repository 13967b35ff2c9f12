// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/narrow_integer.h"

#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace fsdp {

std::optional<NarrowInteger> NarrowIntegerOfName(std::string_view name) {
  constexpr std::array kIntegers = {NarrowInteger{"int4", 4, DType::kInt8}, NarrowInteger{"int2", 2, DType::kInt8},
                                    NarrowInteger{"uint4", 4, DType::kUInt8}, NarrowInteger{"uint2", 2, DType::kUInt8}};
  for (const NarrowInteger& integer : kIntegers) {
    if (integer.name == name) return integer;
  }
  return std::nullopt;
}

absl::Status WidenIntegers(const NarrowInteger& integer, const Interval& interval, std::byte* bytes) {
  const unsigned mask = (1U << integer.bits) - 1;
  const unsigned sign = integer.dtype == DType::kInt8 ? 1U << (integer.bits - 1) : 0;
  for (int64_t i = 0; i < interval.size(); ++i) {
    const auto stored = static_cast<unsigned>(bytes[i]);
    const unsigned low = stored & mask;
    const unsigned widened = ((low ^ sign) - sign) & 0xFF;
    if (stored != low && stored != widened) {
      return absl::DataLossError(absl::StrCat("element ", interval.begin + i, " is the byte ", stored,
                                              ", which is no value of ", std::string(integer.name)));
    }
    bytes[i] = static_cast<std::byte>(widened);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
