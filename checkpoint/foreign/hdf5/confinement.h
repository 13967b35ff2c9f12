// SPDX-License-Identifier: Apache-2.0
//
// Confine: irrevocably gives up every right that parsing one open file does not need. For a process that was just
// forked to parse the file.
#ifndef FSDP_CHECKPOINT_FOREIGN_HDF5_CONFINEMENT_H_
#define FSDP_CHECKPOINT_FOREIGN_HDF5_CONFINEMENT_H_

#include <cstdint>

namespace fsdp {

struct Confinement {
  int64_t memory_bytes = 0;  // of address space, in addition to the current size
  int cpu_seconds = 0;
  int open_files = 0;  // descriptors below this number may exist
};

// Returns whether everything was applied. Afterwards: no core file, no file can grow, no new privileges, the limits
// above, SIGKILL when the parent ends, default signal actions; and on kernels with seccomp only the system calls that
// reading files and using memory need. Other calls, and opening a file for writing, fail with EPERM. Allocates no
// memory, so it is safe in a child forked from a process with threads.
bool Confine(const Confinement& confinement);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_HDF5_CONFINEMENT_H_
