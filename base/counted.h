// SPDX-License-Identifier: Apache-2.0
//
// Counted: a number of things in a sentence for people.
#ifndef FSDP_BASE_COUNTED_H_
#define FSDP_BASE_COUNTED_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace fsdp {

// "1 tensor", "0 tensors": `noun` with an s, unless the number is 1.
inline std::string Counted(int64_t number, std::string_view noun) {
  return absl::StrCat(number, " ", std::string(noun), number == 1 ? "" : "s");
}

}  // namespace fsdp

#endif  // FSDP_BASE_COUNTED_H_
