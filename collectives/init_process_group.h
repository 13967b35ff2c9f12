// SPDX-License-Identifier: Apache-2.0
//
// InitProcessGroup: joins the job that this process was started in, as torch.distributed.init_process_group. Of the
// library, only this function and HostIdentity (FSDP_HOSTID) read the environment.
#ifndef FSDP_COLLECTIVES_INIT_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_INIT_PROCESS_GROUP_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/collectives/job/rendezvous.h"

namespace fsdp {

struct InitOptions {
  absl::Duration timeout = absl::Minutes(10);  // of each collective
  // Until all ranks have joined; default: `timeout`. It is the only limit on the wait for a host that is lost before
  // its ranks have met the others, so make it short if a launcher starts all ranks together and restarts them
  // (torchrun).
  std::optional<absl::Duration> join_timeout = {};
  std::shared_ptr<Device> device = nullptr;  // null: the result of make_device, or a new host device
  // Called once, before the group exists, with the job as `device` needs it, including this rank's place among the
  // ranks of its host. If the environment does not give that place, it is called after the ranks have met. May be null.
  std::function<absl::StatusOr<std::shared_ptr<Device>>(const Rendezvous& job)> make_device = nullptr;
  // "shm" (one host), "net" (several hosts, or one for a test), "mpi" (like "net", over MPI's messages, for ranks that
  // MPI's launcher started, in a program that depends on //collectives/mpi), "nccl" on GPUs, "local" for one rank, or
  // "fake" for one rank of a job without its other ranks (fake_process_group.h). Empty: chosen by device and hosts,
  // never "mpi" or "fake".
  std::string backend = {};
  // Ranks with equal ids count as on one host; empty: FSDP_HOSTID, or the kernel's identity (host_identity.h).
  std::string host_id = {};
};

// The world group of the job that rendezvous.h finds in the environment. On host devices: backend "shm" for processes
// of one host, "net" for several hosts; on GPUs "nccl"; "local", with one rank, if there is no job. Blocks until all
// ranks arrived. kDeadlineExceeded names the missing ranks; kUnavailable names the job and the process that hold
// MASTER_PORT, or that are this rank already (job_store.h); rank 0's group holds the port until it is destroyed, so a
// process has one such group at a time. kInvalidArgument for a backend that does not fit the device or the hosts, and
// for an environment that contradicts itself; kFailedPrecondition if ranks are on several hosts and UCX is not
// installed on one of them, and for "mpi" if MPI cannot be loaded; its first group may initialise MPI.
absl::StatusOr<std::shared_ptr<ProcessGroup>> InitProcessGroup(const InitOptions& options = {});

// InitProcessGroup for a job that is known without the environment.
absl::StatusOr<std::shared_ptr<ProcessGroup>> InitProcessGroup(const Rendezvous& rendezvous,
                                                               const InitOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_INIT_PROCESS_GROUP_H_
