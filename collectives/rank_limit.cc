// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/rank_limit.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/collectives/host/available_memory.h"

namespace fsdp {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr int64_t kTasksPerRank = 16;
constexpr int64_t kBytesPerRank = 16 << 20;

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// The number in a file; `otherwise` if it has no number, as a pids.max of "max".
int64_t NumberIn(const std::string& path, int64_t otherwise) {
  int64_t number = 0;
  return absl::SimpleAtoi(TextOf(path), &number) ? number : otherwise;
}

// As for memory (available_memory.cc): the process's own group, and the top, which in a container is its own group.
int64_t CgroupTasks() {
  int64_t tasks = kUnlimited;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(TextOf("/proc/self/cgroup"), '\n'))) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    // A line is "hierarchy:controllers:path"; cgroup v2 has an empty list of controllers.
    if (fields.size() != 3 || (!fields[1].empty() && fields[1] != "pids")) continue;
    const std::string top = fields[1].empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    for (const std::string& directory : {top, absl::StrCat(top, fields[2])}) {
      const int64_t limit = NumberIn(absl::StrCat(directory, "/pids.max"), kUnlimited);
      if (limit == kUnlimited) continue;
      const int64_t used = NumberIn(absl::StrCat(directory, "/pids.current"), 0);
      // The used count may exceed the limit: lowering pids.max does not end processes.
      tasks = std::min(tasks, std::max<int64_t>(limit - used, 0));
    }
  }
  return tasks;
}

// The limit of a user's tasks, without the number in use, which this process cannot see. It does not bind root.
int64_t UserTasks() {
  struct rlimit limit = {};
  const bool is_bound = geteuid() != 0 && getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_bound ? static_cast<int64_t>(limit.rlim_cur) : kUnlimited;
}

}  // namespace

HostLimits HostLimits::OfThisHost() {
  cpu_set_t set;
  // If the mask does not fit into cpu_set_t (more than 1,024 CPUs), one CPU is assumed, and the limit is 64 ranks.
  CPU_ZERO(&set);
  return {.cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1,
          .tasks = std::min({CgroupTasks(), UserTasks(), NumberIn("/proc/sys/kernel/threads-max", kUnlimited),
                             NumberIn("/proc/sys/kernel/pid_max", kUnlimited)}),
          .available_bytes = AvailableMemoryBytes()};
}

absl::Status CheckRankCount(int nproc, const HostLimits& host) {
  if (nproc < 1) {
    return absl::InvalidArgumentError(absl::StrCat("nproc is ", nproc, ", wanted at least 1"));
  }
  const struct {
    int64_t most;
    std::string why;
  } limits[] = {
      {std::max<int64_t>(64, 4 * int64_t{host.cpus}),
       absl::StrCat("64, or 4 for each of the ", host.cpus, " CPUs if that is more")},
      {host.tasks / kTasksPerRank,
       absl::StrCat(host.tasks, " processes and threads may be added, and a rank counts as ", kTasksPerRank)},
      {host.available_bytes / kBytesPerRank,
       absl::StrCat(host.available_bytes, " bytes of memory are available, and a rank counts as ", kBytesPerRank)},
  };
  for (const auto& limit : limits) {
    // One rank is always allowed: a host without room for it fails with a better error later.
    if (nproc > std::max<int64_t>(limit.most, 1)) {
      return absl::InvalidArgumentError(absl::StrCat("nproc is ", nproc, ", wanted at most ",
                                                     std::max<int64_t>(limit.most, 1), " on this host: ", limit.why));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
