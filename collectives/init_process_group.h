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
  // Until all ranks have come; default: `timeout`. A host that is lost before its ranks have met the others is missed
  // by this alone, so it is short where a launcher starts all ranks at once, and starts them again (torchrun).
  std::optional<absl::Duration> join_timeout = {};
  std::shared_ptr<Device> device = nullptr;  // null: what make_device makes, or a new host device
  // Called once, before there is a group, with the job as `device` needs it: with this rank's place among those of its
  // host. Where the environment does not tell that place, the ranks have met before. May be null.
  std::function<absl::StatusOr<std::shared_ptr<Device>>(const Rendezvous& job)> make_device = nullptr;
  // "shm" (one host), "net" (several, or one for a test), "mpi" (the same over MPI's messages, for ranks that MPI's
  // launcher started, in a program that depends on //collectives/mpi), "nccl" on GPUs, "local" for one rank, or "fake"
  // for one rank of a job whose others are not there (fake_process_group.h); empty: what fits, which is never "mpi" or
  // "fake".
  std::string backend = {};
  // Ranks with equal ones are taken to be on one host; empty: FSDP_HOSTID, or what the kernel says (host_identity.h).
  std::string host_id = {};
};

// The world group of the job that rendezvous.h finds in the environment. On host devices: backend "shm" for the
// processes of one host, "net" for those of several; on GPUs "nccl"; "local", one rank alone, when there is no job.
// Blocks until all ranks arrived. kDeadlineExceeded names the missing ranks; kUnavailable names the job and the process
// that hold MASTER_PORT, or that are this rank already (job_store.h); rank 0's group holds the port until it is
// destroyed, so a process has one such group at a time. kInvalidArgument for a backend that the device or the hosts
// cannot have, and for an environment that contradicts itself; kFailedPrecondition if ranks are on several hosts and
// UCX is not installed on one of them, and for "mpi" if MPI cannot be loaded; its first group may initialise MPI.
absl::StatusOr<std::shared_ptr<ProcessGroup>> InitProcessGroup(const InitOptions& options = {});

// The same for a job that is known without the environment.
absl::StatusOr<std::shared_ptr<ProcessGroup>> JoinProcessGroup(const Rendezvous& rendezvous,
                                                               const InitOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_INIT_PROCESS_GROUP_H_
