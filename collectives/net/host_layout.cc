// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/host_layout.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdp {

HostLayout HostLayout::Of(const std::vector<std::string>& identities) {
  HostLayout layout;
  std::map<std::string, int> numbers;
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    const int host = numbers.emplace(identities[rank], layout.hosts()).first->second;
    if (host == layout.hosts()) layout.ranks_on_.emplace_back();
    layout.host_of_.push_back(host);
    layout.ranks_on_[host].push_back(static_cast<int>(rank));
  }
  return layout;
}

bool HostLayout::is_regular() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (host_of_[rank] != rank / ranks_per_host()) return false;
  }
  return size() == hosts() * ranks_per_host();
}

std::vector<int> HostLayout::Column(int rank) const {
  std::vector<int> column;
  for (int r = rank % ranks_per_host(); r < size(); r += ranks_per_host()) column.push_back(r);
  return column;
}

HostLayout HostLayout::Part(const std::vector<int>& members) const {
  std::vector<std::string> identities;
  for (const int member : members) identities.push_back(absl::StrCat(host_of_[member]));
  return Of(identities);
}

std::string HostLayout::ToString() const {
  if (is_regular()) {
    return absl::StrCat(hosts(), hosts() == 1 ? " host with " : " hosts with ", ranks_per_host(),
                        ranks_per_host() == 1 ? " rank" : " ranks", hosts() == 1 ? "" : " each");
  }
  std::vector<size_t> counts;
  for (const std::vector<int>& ranks : ranks_on_) counts.push_back(ranks.size());
  const bool equal = std::all_of(counts.begin(), counts.end(), [&](size_t count) { return count == counts[0]; });
  return equal ? absl::StrCat(hosts(), " hosts whose ranks alternate")
               : absl::StrCat(hosts(), " hosts with ", absl::StrJoin(counts, ", "), " ranks");
}

}  // namespace fsdp
