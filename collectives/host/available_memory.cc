// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/host/available_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace fsdp {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// The sum of the numbers that follow any of `keys` in lines "key number ...".
int64_t SumOf(const std::string& text, const std::vector<std::string>& keys) {
  std::istringstream lines(text);
  std::string line;
  int64_t sum = 0;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string key;
    int64_t number = 0;
    if (words >> key >> number && std::find(keys.begin(), keys.end(), key) != keys.end()) {
      sum += number;
    }
  }
  return sum;
}

// A line of /proc/self/cgroup is "0::/path" in version 2, "4:memory:/path" in version 1 (cgroups(7)). Inside a
// container the path may be the host's while the container's own group is mounted at the top: both are read, and a
// missing file means no limit. Limits of groups in between are not read; they are rare, and the kernel enforces them.
int64_t OwnCgroupAvailableBytes() {
  int64_t available = kUnlimited;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(TextOf("/proc/self/cgroup"), '\n'))) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    const bool version2 = fields.size() == 3 && fields[1].empty();
    if (!version2 && (fields.size() != 3 || fields[1] != "memory")) {
      continue;
    }
    const std::string top = version2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (const std::string& directory : {top, absl::StrCat(top, fields[2])}) {
      const char* const limit = version2 ? "/memory.max" : "/memory.limit_in_bytes";
      const char* const usage = version2 ? "/memory.current" : "/memory.usage_in_bytes";
      available = std::min(available, CgroupAvailableBytes(TextOf(absl::StrCat(directory, limit)),
                                                           TextOf(absl::StrCat(directory, usage)),
                                                           TextOf(absl::StrCat(directory, "/memory.stat"))));
    }
  }
  return available;
}

// For a process without /proc: the kernel's numbers for the whole host, which do not count the page cache as free.
int64_t FreeBytes() {
  struct sysinfo host;
  if (sysinfo(&host) != 0) return kUnlimited;
  return static_cast<int64_t>(host.freeram + host.bufferram + host.freeswap) * host.mem_unit;
}

}  // namespace

int64_t CgroupAvailableBytes(const std::string& limit, const std::string& usage, const std::string& stat) {
  int64_t limit_bytes = 0;
  int64_t usage_bytes = 0;
  if (!absl::SimpleAtoi(absl::StripSuffix(limit, "\n"), &limit_bytes) ||
      !absl::SimpleAtoi(absl::StripSuffix(usage, "\n"), &usage_bytes)) {
    return kUnlimited;
  }
  // The usage includes the page cache, which the kernel gives up before it kills a process.
  const int64_t reclaimable = SumOf(stat, {"inactive_file", "active_file"});
  return std::max<int64_t>(limit_bytes - std::max<int64_t>(usage_bytes - reclaimable, 0), 0);
}

int64_t AvailableMemoryBytes() {
  const std::string host = TextOf("/proc/meminfo");
  if (host.empty()) return FreeBytes();
  // /proc/meminfo is in KiB.
  return std::min(SumOf(host, {"MemAvailable:", "SwapFree:"}) * 1024, OwnCgroupAvailableBytes());
}

}  // namespace fsdp
