// SPDX-License-Identifier: Apache-2.0
//
// If only one side has a prefix, each of its names that is a name of the other side after some dot votes for the text
// before that dot. If both sides have one, it is the longest text with which all names of the side begin: a model under
// a wrapper has nothing next to it.
#include "fsdp/checkpoint/name_prefixes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace fsdp {
namespace {

// Bounds the work on a hostile name of many dots.
constexpr int kMaxComponents = 8;

using Names = absl::flat_hash_set<std::string_view>;

// The prefix that the most of `names` have before a name of `others`; empty without one.
std::string MostVoted(const std::vector<std::string_view>& names, const Names& others) {
  absl::flat_hash_map<std::string_view, int64_t> votes;
  for (const std::string_view name : names) {
    size_t dot = name.find('.');
    for (int i = 0; i < kMaxComponents && dot != name.npos; ++i, dot = name.find('.', dot + 1)) {
      if (others.contains(name.substr(dot + 1))) ++votes[name.substr(0, dot + 1)];
    }
  }
  std::string_view best;
  int64_t most = 0;
  for (const auto& [prefix, count] : votes) {
    // The hash table has no order: of equal counts the first prefix by name.
    if (count < most || (count == most && prefix > best)) continue;
    best = prefix;
    most = count;
  }
  return std::string(best);
}

// The longest text, empty or with a dot at its end, with which all names begin.
std::string CommonPrefix(const std::vector<std::string_view>& names) {
  if (names.empty()) return "";
  std::string_view common = names.front();
  for (const std::string_view name : names) {
    const size_t length = std::min(common.size(), name.size());
    common = common.substr(
        0, std::mismatch(common.begin(), common.begin() + static_cast<std::ptrdiff_t>(length), name.begin()).first -
               common.begin());
  }
  const size_t dot = common.rfind('.');
  return dot == common.npos ? "" : std::string(common.substr(0, dot + 1));
}

int64_t CountPairs(const NamePrefixes& prefixes, const std::vector<std::string_view>& in_a, const Names& in_b) {
  return std::count_if(in_a.begin(), in_a.end(), [&](std::string_view name) {
    if (name.substr(0, prefixes.a.size()) != prefixes.a) return false;
    return in_b.contains(prefixes.b + std::string(name.substr(prefixes.a.size())));
  });
}

}  // namespace

std::optional<NamePrefixes> FindPrefixes(const std::vector<std::string_view>& in_a,
                                         const std::vector<std::string_view>& in_b) {
  if (in_a.empty() || in_b.empty()) return std::nullopt;
  const Names set_a(in_a.begin(), in_a.end());
  const Names set_b(in_b.begin(), in_b.end());
  NamePrefixes best;
  int64_t most = 0;
  for (const NamePrefixes& prefixes :
       {NamePrefixes{MostVoted(in_a, set_b), ""}, NamePrefixes{"", MostVoted(in_b, set_a)},
        NamePrefixes{CommonPrefix(in_a), CommonPrefix(in_b)}}) {
    const int64_t count = CountPairs(prefixes, in_a, set_b);
    if (count > most) best = prefixes;
    most = std::max(most, count);
  }
  if (most == 0 || 2 * most < static_cast<int64_t>(std::min(in_a.size(), in_b.size()))) return std::nullopt;
  return best;
}

}  // namespace fsdp
