// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/suggestion.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

// A name is a word of a command line; a longer text is compared by its first letters only.
constexpr size_t kLongest = 64;

// The "optimal string alignment" distance: Levenshtein's, and neighbours that changed places.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = last;
    last = row;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string DidYouMean(std::string_view typed, absl::Span<const std::string> names, std::string_view prefix) {
  typed = typed.substr(0, kLongest);
  const std::string* nearest = nullptr;
  size_t least = std::max<size_t>(1, typed.size() / 3) + 1;
  const std::string* related = nullptr;
  size_t number_related = 0;
  for (const std::string& name : names) {
    if (const size_t distance = Distance(typed, name); distance < least) {
      nearest = &name;
      least = distance;
    }
    const absl::string_view text(typed.data(), typed.size());
    const bool is_longer = typed.size() > 1 && absl::StartsWith(name, text);
    if (is_longer || absl::StartsWith(text, absl::StrCat(name, "_"))) {
      related = &name;
      ++number_related;
    }
  }
  if (nearest == nullptr && number_related == 1) nearest = related;
  // "-x" is one letter from every flag of one letter, and from nothing that a person meant.
  if (nearest == nullptr || typed.size() < 2) return "";
  return absl::StrCat(" (did you mean ", std::string(prefix), *nearest, "?)");
}

}  // namespace fsdp
