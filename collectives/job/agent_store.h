// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a torchrun job on several hosts meet. MASTER_PORT belongs to torchrun's agent, which serves torch's
// TCPStore at it (torch_store.h), so rank 0 takes another port and publishes its address in the agent's store:
//
//   rank 0   ListenTowardsAgent --> PublishListener: set "fsdp/<job>/store"
//   rank r   ConnectToPublished: wait for the key, get it, connect
//
// The agent's store outlives a restart of the ranks, so the key may still name the rank 0 of an earlier run of the job.
// A rank that is refused at that address reads the key again.
#ifndef FSDP_COLLECTIVES_JOB_AGENT_STORE_H_
#define FSDP_COLLECTIVES_JOB_AGENT_STORE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/collectives/job/rendezvous.h"

namespace fsdp {

// Errors of all three: kUnavailable if the agent does not listen, kDeadlineExceeded, and kDataLoss if the listener at
// MASTER_PORT does not speak TCPStore's protocol, or if the published address is malformed.

// Rank 0: listens on a free port of the interface from which this host reaches the agent. If that is the loopback
// interface, the agent is on this host and other hosts reach it by another interface; then it listens on all
// interfaces.
absl::StatusOr<FileDescriptor> ListenTowardsAgent(const Rendezvous& rendezvous, absl::Time deadline);

// Rank 0: publishes the address of a listener that ListenTowardsAgent returned, and reads it back.
absl::Status PublishListener(const Rendezvous& rendezvous, int listener, absl::Time deadline);

// The other ranks: a connection to the published address. kDeadlineExceeded also if none is published in time.
absl::StatusOr<FileDescriptor> ConnectToPublished(const Rendezvous& rendezvous, absl::Time deadline);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_AGENT_STORE_H_
