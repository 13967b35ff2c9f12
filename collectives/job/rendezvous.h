// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: the job that a process belongs to, as read from its environment. The first family of variables that is
// present decides: torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), which our own
// launcher sets too; Slurm's (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, ...), inside a job step; Open MPI's
// (OMPI_COMM_WORLD_RANK, ...); then the variables of MPICH's launcher Hydra (PMI_RANK, MPI_LOCALRANKID, ...). How the
// ranks then find each other is in job_store.h.
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
  // False if the environment has only RANK and WORLD_SIZE and does not place ranks on hosts. Until the ranks have met,
  // the two members above then have the values of a job on one host (InitOptions::make_device).
  bool local_ranks_are_known = true;
  std::string master_addr;  // host of rank 0's store
  int master_port = 0;      // 0: the job has no port
  std::string source;       // "torchrun", "slurm", "openmpi", "mpich", "single process"

  std::string job;  // its identity (job_identity.h)
  // Another program listens on master_port: torchrun's agent, which serves its own store there.
  bool master_port_is_taken = false;
  int store_fd = -1;  // rank 0 only: see kStoreDescriptorVariable; -1: not passed
  // Ports on which rank 0 of a job on several hosts may listen if there is no master_port, in the order in which all
  // ranks try them: other jobs may hold some.
  std::vector<int> candidate_ports = {};
  // Why the ranks of other hosts cannot find rank 0, and what to do: the job is on several hosts and its launcher does
  // not pass MASTER_ADDR and MASTER_PORT. Empty if they can find it. MPI itself may send the address (mpi_transport.h).
  std::string no_master = {};
  // Rank 0 refuses a rank with another token. It protects against accidents on untrusted networks, not against
  // attackers: it crosses the network unencrypted. Never part of a message; empty for a job without a token.
  std::string token = {};

  // By the environment, or possible if the environment does not say. When the ranks meet they may find otherwise
  // (host_identity.h).
  bool is_on_several_hosts() const { return local_world_size < world_size || !local_ranks_are_known; }

  // torchrun's agent serves its store at master_port, from which ranks of other hosts read the address of our store
  // (agent_store.h). The ranks of one host need only their local socket.
  bool uses_agent_store() const { return master_port_is_taken && is_on_several_hosts(); }
};

// kInvalidArgument names a variable that is missing although others of its family are set (but see no_master), that is
// not a number, or that contradicts another (rank 4 of world size 4). Without any family: a job of one rank, "single
// process". `getenv` is an EnvironmentLookup (job_identity.h).
absl::StatusOr<Rendezvous> ParseRendezvous(
    const std::function<std::optional<std::string>(const std::string& name)>& getenv, const ProcessEvidence& evidence);

// ParseRendezvous with the current environment of this process.
absl::StatusOr<Rendezvous> RendezvousFromEnvironment();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_RENDEZVOUS_H_
