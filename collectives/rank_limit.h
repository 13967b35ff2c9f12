// SPDX-License-Identifier: Apache-2.0
//
// The number of ranks that a host can hold, so that a typo in a number of ranks is an error and does not stall the
// host.
#ifndef FSDP_COLLECTIVES_RANK_LIMIT_H_
#define FSDP_COLLECTIVES_RANK_LIMIT_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"

namespace fsdp {

struct HostLimits {
  int cpus = 1;  // that this process may run on
  // Processes and threads that may be added: the rest of the cgroup's pids.max, and RLIMIT_NPROC.
  int64_t tasks = std::numeric_limits<int64_t>::max();
  int64_t available_bytes = std::numeric_limits<int64_t>::max();  // of memory

  static HostLimits OfThisHost();
};

// kInvalidArgument, naming the limit, for fewer ranks than 1 or more than the least of
//   - 64, or 4 for each CPU if that is more,
//   - one for each 16 tasks, since a rank has some threads,
//   - one for each 16 MiB of memory, which a rank of the smallest model needs.
absl::Status CheckRankCount(int nproc, const HostLimits& host);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_RANK_LIMIT_H_
