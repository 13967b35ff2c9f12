// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/self_launch.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>

#include "absl/status/statusor.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/collectives/rank_limit.h"

namespace fsdp {

absl::Status CheckNproc(int nproc) { return CheckRankCount(nproc, HostLimits::OfThisHost()); }

std::string SelfPath() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  return std::string(path, static_cast<size_t>(std::max<ssize_t>(n, 0)));
}

bool InsideJob() {
  const absl::StatusOr<Rendezvous> rendezvous = RendezvousFromEnvironment();
  return !rendezvous.ok() || rendezvous->source != "single process";
}

}  // namespace fsdp
