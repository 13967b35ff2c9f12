// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/run_metadata.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

// The text form of each alternative of AttributeValue.
struct ValueText {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return absl::StrCat(value); }
  std::string operator()(const std::string& value) const { return Quote(value); }

  // Without a point or an exponent a reader would take the number for an integer. "inf" and "nan" are left as they are.
  std::string operator()(double value) const {
    char digits[32];
    const std::to_chars_result end = std::to_chars(digits, digits + sizeof(digits), value);
    std::string text(digits, end.ptr);
    if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
    return text;
  }
};

std::string SideText(const std::optional<AttributeValue>& side) {
  return side.has_value() ? ToString(*side) : "not recorded";
}

}  // namespace

RunMetadata InSection(std::string_view section, const RunMetadata& attributes) {
  RunMetadata renamed;
  for (const auto& [name, value] : attributes) renamed.emplace(absl::StrCat(std::string(section), ".", name), value);
  return renamed;
}

// A merge of two sorted sequences.
std::vector<AttributeDifference> CompareAttributes(const RunMetadata& saved, const RunMetadata& current) {
  std::vector<AttributeDifference> differences;
  auto a = saved.begin();
  auto b = current.begin();
  while (a != saved.end() || b != current.end()) {
    if (b == current.end() || (a != saved.end() && a->first < b->first)) {
      differences.push_back({.name = a->first, .saved = a->second});
      ++a;
    } else if (a == saved.end() || b->first < a->first) {
      differences.push_back({.name = b->first, .current = b->second});
      ++b;
    } else {
      if (a->second != b->second) differences.push_back({a->first, a->second, b->second});
      ++a;
      ++b;
    }
  }
  return differences;
}

std::string ToString(const AttributeValue& value) { return std::visit(ValueText(), value); }

std::string ToString(const AttributeDifference& difference) {
  return absl::StrCat(Printable(difference.name), ": ", SideText(difference.saved), " -> ",
                      SideText(difference.current));
}

}  // namespace fsdp
