// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/natural_order.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace fsdp {

bool IsNaturallyBefore(std::string_view a, std::string_view b) {
  size_t i = 0;
  size_t j = 0;
  const auto number_at = [](std::string_view text, size_t at) {
    size_t end = at;
    while (end < text.size() && absl::ascii_isdigit(text[end])) ++end;
    return text.substr(at, end - at);
  };
  while (i < a.size() && j < b.size()) {
    std::string_view x = number_at(a, i);
    std::string_view y = number_at(b, j);
    if (x.empty() || y.empty()) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    i += x.size();
    j += y.size();
    // By value, without leading zeros, so that numbers of any length can be compared.
    x.remove_prefix(std::min(x.find_first_not_of('0'), x.size()));
    y.remove_prefix(std::min(y.find_first_not_of('0'), y.size()));
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // "01" and "1"
}

}  // namespace fsdp
