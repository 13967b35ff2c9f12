// SPDX-License-Identifier: Apache-2.0
//
// The name of a job: equal on all its ranks, different for any other job. It is in the first message of every
// connection of the store (store_member.h), so two jobs that were given one MASTER_PORT never join each other. The
// first entry of this list that a process has is its job's name:
//
//   1. launch     FSDP_LAUNCH_ID, a random number of our launcher, new for each launch
//   2. run        FSDP_RUN_ID, from --run_id
//   3. torchrun   TORCHELASTIC_RUN_ID; if that is "none", torchrun's default, the address of its agent's store, unless
//                 the agent does not serve one
//   4. pmix       PMIX_NAMESPACE: of mpirun, and of Slurm's PMIx
//   5. openmpi    OMPI_MCA_ess_base_jobid
//   6. slurm      SLURM_JOB_ID, with SLURM_STEP_ID if that is set
//   7. pbs, lsf   PBS_JOBID, LSB_JOBID
//   8. command    a digest of user, working directory and command line
//
// MPI's variables come before Slurm's: mpirun inside of a Slurm allocation starts ranks in different steps. The last
// entry is for ranks that are started by hand. It distinguishes jobs whose user, directory or command line differ. It
// does not distinguish two jobs that are equal in all three, and it makes two jobs of ranks whose command lines differ;
// use --run_id for both cases.
#ifndef FSDP_COLLECTIVES_JOB_JOB_IDENTITY_H_
#define FSDP_COLLECTIVES_JOB_JOB_IDENTITY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

inline constexpr char kRunIdVariable[] = "FSDP_RUN_ID";

// The value is NewLaunchId(port). It counts only together with MASTER_PORT=port: a process that a rank starts inherits
// it, and may belong to another job.
inline constexpr char kLaunchIdVariable[] = "FSDP_LAUNCH_ID";

// Returns the value of a variable, or nullopt if it is unset.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

// The name of a job comes from these if the environment does not name it.
struct ProcessEvidence {
  uint32_t user = 0;
  std::string directory = {};
  std::vector<std::string> command_line = {};

  static ProcessEvidence OfThisProcess();
};

// For messages and for comparison: "run nightly", "slurm 12.0", "command 5f0c... in /home/me/run". At most 300 bytes,
// printable. An empty variable counts as unset.
std::string IdentifyJob(const EnvironmentLookup& getenv, const ProcessEvidence& evidence);

// "29500.0123456789abcdef", with a number that no other launch has.
std::string NewLaunchId(int port);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_JOB_IDENTITY_H_
