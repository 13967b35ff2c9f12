// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: what a process learns from its environment about the job that it belongs to. The first family of
// variables that is present decides: torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT), which our own launcher sets too; Slurm's (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, ...), inside a job
// step; Open MPI's (OMPI_COMM_WORLD_RANK, ...). How the ranks then find each other is in job_store.h.
#ifndef FSDP_COLLECTIVES_JOB_RENDEZVOUS_H_
#define FSDP_COLLECTIVES_JOB_RENDEZVOUS_H_

#include <string>

#include "absl/status/statusor.h"
#include "fsdp/collectives/job/job_identity.h"

namespace fsdp {

// The variable in which our launcher gives rank 0 the number of a descriptor that listens on MASTER_PORT.
inline constexpr char kStoreDescriptorVariable[] = "FSDP_STORE_FD";

struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;  // host of rank 0's store
  int master_port = 0;      // 0 when the job has none
  std::string source;       // "torchrun", "slurm", "openmpi", "single process"

  std::string job;  // its identity (job_identity.h)
  // Another program listens on master_port: torchrun's agent, which serves its own store there.
  bool master_port_is_taken = false;
  int store_fd = -1;  // rank 0 only: see kStoreDescriptorVariable; -1 if there is none
};

// kInvalidArgument names a variable that is missing although others of its family are set, that is not a number, or
// that contradicts another (rank 4 of world size 4). Without any family: a job of one rank, "single process".
absl::StatusOr<Rendezvous> ParseRendezvous(const EnvironmentLookup& getenv, const ProcessEvidence& evidence);

// ParseRendezvous of this process, as it is now.
absl::StatusOr<Rendezvous> RendezvousFromEnvironment();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_RENDEZVOUS_H_
