// SPDX-License-Identifier: Apache-2.0
//
// PeerWatch: what a wait asks before each of its sleeps, in shared memory and on the network alike: whether the job has
// lost a rank. A wait sees only its own peers; the watch of the job (job/job_watch.h) knows which process ended first,
// and which rank or host does not answer, although its memory and its connections are still there.
#ifndef FSDP_COLLECTIVES_GROUP_PEER_WATCH_H_
#define FSDP_COLLECTIVES_GROUP_PEER_WATCH_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace fsdp {

// Reports the first lost rank of the job: OK while no loss is known. Waits up to the duration for a loss. Null: the job
// has no watch.
using PeerWatch = std::function<absl::Status(absl::Duration)>;

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_PEER_WATCH_H_
