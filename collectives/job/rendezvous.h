// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: what a process learns from its environment about the job that it belongs to. The first family of
// variables that is present decides: torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT), which our own launcher sets too; Slurm's (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, ...), inside a job
// step; Open MPI's (OMPI_COMM_WORLD_RANK, ...); those of MPICH's launcher Hydra (PMI_RANK, MPI_LOCALRANKID, ...). How
// the ranks then find each other is in job_store.h.
#ifndef FSDP_COLLECTIVES_JOB_RENDEZVOUS_H_
#define FSDP_COLLECTIVES_JOB_RENDEZVOUS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

struct ProcessEvidence;

// The variable in which our launcher gives rank 0 the number of a descriptor that listens on MASTER_PORT.
inline constexpr char kStoreDescriptorVariable[] = "FSDP_STORE_FD";

// A secret of the job, which the user may set: see Rendezvous::token.
inline constexpr char kTokenVariable[] = "FSDP_JOB_TOKEN";

struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  // False if the environment does not tell where ranks are: RANK and WORLD_SIZE are all there is. The two above are
  // then those of a job on one host until the ranks have met (InitOptions::make_device).
  bool local_ranks_are_known = true;
  std::string master_addr;  // host of rank 0's store
  int master_port = 0;      // 0 when the job has none
  std::string source;       // "torchrun", "slurm", "openmpi", "mpich", "single process"

  std::string job;  // its identity (job_identity.h)
  // Another program listens on master_port: torchrun's agent, which serves its own store there.
  bool master_port_is_taken = false;
  int store_fd = -1;  // rank 0 only: see kStoreDescriptorVariable; -1 if there is none
  // Where rank 0 of a job on several hosts may listen if there is no master_port, in the order in which all ranks try:
  // other jobs may hold some.
  std::vector<int> candidate_ports = {};
  // Why the ranks of other hosts cannot find rank 0, and what to do: a job on several hosts whose launcher passes no
  // MASTER_ADDR and MASTER_PORT on. Empty if they can. MPI itself may tell them (mpi_transport.h).
  std::string no_master = {};
  // Rank 0 takes no rank with another token. Against accidents on networks that are not trusted: it crosses the network
  // as it is. Never part of a message; empty if the job has none.
  std::string token = {};

  // By the environment, or possible where that does not tell: what ranks find out when they meet may differ
  // (host_identity.h).
  bool is_on_several_hosts() const { return local_world_size < world_size || !local_ranks_are_known; }

  // torchrun's agent serves its store at master_port, and ranks of other hosts learn there where ours is
  // (agent_store.h). The ranks of one host need no more than their local socket.
  bool uses_agent_store() const { return master_port_is_taken && is_on_several_hosts(); }
};

// kInvalidArgument names a variable that is missing although others of its family are set (but see no_master), that is
// not a number, or that contradicts another (rank 4 of world size 4). Without any family: a job of one rank, "single
// process". `getenv` is an EnvironmentLookup (job_identity.h).
absl::StatusOr<Rendezvous> ParseRendezvous(
    const std::function<std::optional<std::string>(const std::string& name)>& getenv, const ProcessEvidence& evidence);

// ParseRendezvous of this process, as it is now.
absl::StatusOr<Rendezvous> RendezvousFromEnvironment();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_RENDEZVOUS_H_
