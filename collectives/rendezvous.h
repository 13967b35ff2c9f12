// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: what a process learns from its environment about the job it belongs to. Variables are looked for in this
// order: torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), which our own launcher
// sets too; Slurm's (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, ...); Open MPI's (OMPI_COMM_WORLD_RANK, ...).
#ifndef FSDP_COLLECTIVES_RENDEZVOUS_H_
#define FSDP_COLLECTIVES_RENDEZVOUS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;  // host of rank 0's store
  int master_port = 0;
  std::string source;  // "torchrun", "slurm", "openmpi", "single process"
};

// Looks variables up with `getenv`, which returns nullopt for an unset one. kInvalidArgument names a variable that is
// missing beside others of its family, is not a number, or contradicts another (rank 4 of world size 4).
absl::StatusOr<Rendezvous> ParseRendezvous(
    const std::function<std::optional<std::string>(const std::string& name)>& getenv);

// ParseRendezvous of this process's environment.
absl::StatusOr<Rendezvous> RendezvousFromEnvironment();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_RENDEZVOUS_H_
