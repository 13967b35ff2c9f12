// SPDX-License-Identifier: Apache-2.0
//
// For this project's programs that start themselves again as ranks (--nproc): their own path, whether they already are
// a rank of a job, and whether this host can hold the ranks.
#ifndef FSDP_COLLECTIVES_SELF_LAUNCH_H_
#define FSDP_COLLECTIVES_SELF_LAUNCH_H_

#include <string>

#include "absl/status/status.h"

namespace fsdp {

// kInvalidArgument, naming the limit, if this host cannot hold this number of ranks. The rule is in rank_limit.h.
absl::Status CheckNproc(int nproc);

// The path of this program's file.
std::string SelfPath();

// True if the environment makes this process a rank of a job, even if it does so wrongly: a broken environment is not a
// licence to start another job.
bool InsideJob();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_SELF_LAUNCH_H_
