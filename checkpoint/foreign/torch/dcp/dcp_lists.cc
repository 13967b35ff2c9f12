// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_lists.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

bool IsInList(const DcpEntry& entry) {
  const DcpEntry::Path path = entry.path();
  return std::any_of(path.begin(), path.end(), [](const auto& element) { return element.is_index; });
}

// The order of the entries in lists: the number of the first entry of the outermost list, then the elements of the path
// from there on, of which a name counts as the number of the first entry that has it.
class Places {
 public:
  std::vector<size_t> Of(const DcpEntry& entry, size_t number) {
    std::vector<size_t> place;
    std::string begin;  // of the path
    for (const DcpEntry::PathElement& element : entry.path()) {
      if (element.is_index && place.empty()) place.push_back(FirstOf(begin, number));
      absl::StrAppend(&begin, element.name, "\n");
      size_t index = 0;
      if (element.is_index && absl::SimpleAtoi(element.name, &index)) place.push_back(index);
      if (!element.is_index && !place.empty()) place.push_back(FirstOf(begin, number));
    }
    return place;
  }

 private:
  size_t FirstOf(const std::string& path, size_t number) { return first_.try_emplace(path, number).first->second; }

  std::map<std::string, size_t> first_;
};

// OK if each element of a list comes after the one before it.
absl::Status CheckOrder(const std::vector<DcpEntry>& entries) {
  std::map<std::string, int64_t> sizes;  // by the path of the list
  for (const DcpEntry& entry : entries) {
    if (!IsInList(entry)) continue;
    std::string list;
    for (const DcpEntry::PathElement& element : entry.path()) {
      if (element.is_index) {
        int64_t& size = sizes[list];
        if (element.name == absl::StrCat(size)) ++size;
        if (element.name != absl::StrCat(size - 1)) {
          return absl::InvalidArgumentError(absl::StrCat(Quote(entry.name()),
                                                         " is in a list that lacks the element before it: a DCP ",
                                                         "directory cannot hold one; write a torch file"));
        }
      }
      absl::StrAppend(&list, element.name, "\n");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OrderLists(std::vector<DcpEntry>& entries) {
  if (CheckOrder(entries).ok()) return absl::OkStatus();
  Places places;
  std::vector<std::pair<std::vector<size_t>, DcpEntry>> listed;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!IsInList(entries[i])) continue;
    std::vector<size_t> place = places.Of(entries[i], i);
    listed.emplace_back(std::move(place), entries[i]);
  }
  std::stable_sort(listed.begin(), listed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  // The entries in lists change places with each other only.
  auto next = listed.begin();
  for (DcpEntry& entry : entries) {
    if (IsInList(entry)) entry = std::move((next++)->second);
  }
  return CheckOrder(entries);
}

}  // namespace fsdp
