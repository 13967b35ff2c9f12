// SPDX-License-Identifier: Apache-2.0
//
// Names of an enumeration's values, as flags and messages spell them, from one table per enumeration.
#ifndef FSDP_FSDP_OPTIONS_ENUM_NAMES_H_
#define FSDP_FSDP_OPTIONS_ENUM_NAMES_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace fsdp {

// One row of a table.
template <typename Enum>
using EnumName = std::pair<Enum, std::string_view>;

// The name of `value`; "unknown" if `table` does not have it.
template <typename Enum>
std::string_view NameOf(absl::Span<const EnumName<Enum>> table, Enum value) {
  for (const auto& [candidate, name] : table) {
    if (candidate == value) return name;
  }
  return "unknown";
}

// The value of the name `text`. kInvalidArgument lists the names of `table`; `what` names the enumeration in that
// message: "sharding strategy".
template <typename Enum>
absl::StatusOr<Enum> ParseEnum(absl::Span<const EnumName<Enum>> table, const char* what, std::string_view text) {
  std::string known;
  for (const auto& [value, name] : table) {
    if (name == text) return value;
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(name));
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " \"", std::string(text), "\" is not one of: ", known));
}

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_ENUM_NAMES_H_
