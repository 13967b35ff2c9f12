// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/bool_bytes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fsdp {

absl::Status CheckBoolBytes(const void* bytes, const Interval& interval) {
  const auto* const begin = static_cast<const unsigned char*>(bytes);
  const auto* const end = begin + interval.size();
  const auto* const wrong = std::find_if(begin, end, [](unsigned char byte) { return byte > 1; });
  if (wrong == end) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("element ", interval.begin + (wrong - begin), " is ", int{*wrong},
                                          ", expected 0 or 1 in a bool tensor"));
}

}  // namespace fsdp
