// SPDX-License-Identifier: Apache-2.0
//
// ProcessRanks: ranks as processes of backend "shm", for tests in which ranks are killed or stopped. The processes are
// forked from the test, which must have no other threads, and die with it.
#ifndef FSDP_COLLECTIVES_CONFORMANCE_PROCESS_RANKS_H_
#define FSDP_COLLECTIVES_CONFORMANCE_PROCESS_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/collectives/job/rendezvous.h"

namespace fsdp {

// How a rank's process ended. A message is cut after 1999 bytes.
struct RankResult {
  bool reported = false;     // false if it was killed before it returned
  absl::Status status = {};  // the result of its function
  absl::Time at = {};        // when the function returned
  int wait_status = 0;       // as waitpid returns it
};

// The rendezvous of rank 0 of a new job, whose name no other job on this host has. Other ranks set `rank`. Not
// thread-safe.
Rendezvous NewJob(int world_size);

// Forks `world_size` processes that call `rank_main` with their rank, and waits for them. Stopped processes are killed
// after all others have ended. Blocks; results are by rank. There is no timeout: `rank_main` must return or be killed.
std::vector<RankResult> RunProcesses(int world_size, const std::function<absl::Status(int rank)>& rank_main);

// RunProcesses with a group of all ranks, created by InitProcessGroup. `timeout`: for joining, and of each collective.
// A rank that cannot join reports the error of InitProcessGroup.
std::vector<RankResult> RunProcessRanks(
    int world_size, absl::Duration timeout,
    const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CONFORMANCE_PROCESS_RANKS_H_
