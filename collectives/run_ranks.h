// SPDX-License-Identifier: Apache-2.0
//
// RunRanks: runs ranks as threads of this process (backend "local"), for tests, examples and several ranks on one
// device.
#ifndef FSDP_COLLECTIVES_RUN_RANKS_H_
#define FSDP_COLLECTIVES_RUN_RANKS_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/collectives/host/local_groups.h"  // IWYU pragma: export

namespace fsdp {

// Calls `rank_main` with a group of `world_size` ranks on as many threads, each with its own host device, and waits for
// all. A rank that returns an error aborts the group, so the others fail with an error that names it. `timeout`: of
// each collective. Returns the error of the rank that failed first, prefixed "rank 2 of 4: ". kInvalidArgument for less
// than one rank.
absl::Status RunRanks(int world_size, const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main,
                      absl::Duration timeout = absl::Minutes(1));

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_RUN_RANKS_H_
