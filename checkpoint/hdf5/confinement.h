// SPDX-License-Identifier: Apache-2.0
//
// Confine: gives up, for good, what parsing one open file does not take. For a process that was just forked to do that.
#ifndef FSDP_CHECKPOINT_HDF5_CONFINEMENT_H_
#define FSDP_CHECKPOINT_HDF5_CONFINEMENT_H_

#include <cstdint>

namespace fsdp {

struct Confinement {
  int64_t memory_bytes = 0;  // beside what the process has now
  int cpu_seconds = 0;
  int open_files = 0;  // descriptors below this number may exist
};

// Returns whether all of it was possible. After it: no core file, no file grows, no new privileges, the limits above,
// death with the parent, default signal actions; and where seccomp is there, only the system calls that reading files
// and using memory take, others failing with EPERM, opening for writing among them. Calls nothing that allocates.
bool Confine(const Confinement& confinement);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_CONFINEMENT_H_
