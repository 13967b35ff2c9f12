// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/slurm_lists.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace fsdp {
namespace {

// Bounds the result: a range such as "1-65535" is valid, and no rank tries so many ports.
constexpr size_t kMostPorts = 16;

bool ToNumber(std::string_view text, int& number) {
  return absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number);
}

std::vector<std::string> Parts(std::string_view list) {
  return absl::StrSplit(absl::string_view(list.data(), list.size()), ',');
}

}  // namespace

// A comma outside of brackets ends the first host. Inside brackets, the first number ends at the first '-' or ','; its
// leading zeros belong to the name.
std::string FirstSlurmHost(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const size_t close = list.find(']');
    // find_first_of finds at least the ']', unless the bracket is not closed, which is checked below.
    const std::string_view first = list.substr(1, list.find_first_of("-,]") - 1);
    if (close == std::string_view::npos || first.empty()) {
      return "";
    }
    host += first;
    list.remove_prefix(close + 1);
  }
  return host;
}

int SlurmTasksOfNode(std::string_view list, int node) {
  for (const std::string& part : Parts(list)) {
    const size_t mark = part.find("(x");
    int tasks = -1;
    int repeat = 1;
    // Without a mark, substr(0, npos) is the whole part, a number for one node.
    if (!ToNumber(std::string_view(part).substr(0, mark), tasks) ||
        (mark != std::string::npos &&
         (part.back() != ')' || !ToNumber(std::string_view(part).substr(mark + 2, part.size() - mark - 3), repeat)))) {
      return -1;
    }
    if (node < repeat) {
      return tasks;
    }
    node -= repeat;
  }
  return -1;
}

std::vector<int> SlurmPorts(std::string_view list) {
  std::vector<int> ports;
  for (const std::string& part : Parts(list)) {
    const std::pair<std::string, std::string> range = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!ToNumber(range.first, first) || first < 1) return {};
    if (part.find('-') == std::string::npos) {
      last = first;
    } else if (!ToNumber(range.second, last)) {
      return {};
    }
    if (last < first || last > std::numeric_limits<uint16_t>::max()) return {};
    for (int port = first; port <= last && ports.size() < kMostPorts; ++port) {
      ports.push_back(port);
    }
  }
  return ports;
}

}  // namespace fsdp
