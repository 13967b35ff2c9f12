// SPDX-License-Identifier: Apache-2.0
//
// The MPI library of this process, which is one for the whole process, whoever initialised it.
//
//   - If the program did, it stays the program's: we ask for its thread level, make communicators of our own, and never
//     finalize it. MPICH gives what goes wrong with our messages to the error handler of MPI_COMM_WORLD, which ends the
//     process unless the program has set MPI_ERRORS_RETURN.
//   - Else the first use initialises it, with MPI_THREAD_MULTIPLE, and a normal end of the process (exit, or a return
//     from main) finalizes it. Not before, since MPI cannot be initialised twice, and a process may make groups anew.
//     After a failure it is not finalized: MPI_Finalize waits for all ranks, of which some may be gone. mpirun then
//     says that a rank ended without it, and ends the others.
//
// Thread-safe.
#ifndef FSDP_COLLECTIVES_MPI_MPI_LIBRARY_H_
#define FSDP_COLLECTIVES_MPI_MPI_LIBRARY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// Where this process is in MPI_COMM_WORLD.
struct MpiPlace {
  int rank = 0;
  int size = 1;
};

// Initialises MPI if nobody has. Where the launcher of this MPI started the processes, it waits for all of them.
// kFailedPrecondition if MPI is finalized, if its thread level is below MPI_THREAD_MULTIPLE, or if this process was
// forked from the one that initialised it. An error inside of MPI_Init ends the process: that is MPI's rule.
absl::StatusOr<MpiPlace> StartMpi();

// "Open MPI v4.1.4"; once StartMpi was called.
std::string MpiVersion();

// "MPI_ERR_TRUNCATE: message truncated"
std::string MpiReason(int code);

// OK for MPI_SUCCESS; else kUnavailable: "MPI_Isend: <reason>".
absl::Status MpiStatus(int code, const char* function);

// A use of MPI: while one is alive, or once one has failed, the end of the process does not finalize MPI.
class MpiUse {
 public:
  MpiUse();
  ~MpiUse();
  MpiUse(const MpiUse&) = delete;
  MpiUse& operator=(const MpiUse&) = delete;

  // What this use has begun may never end.
  void Fail();
};

// `function` is called at the end of the process, before it finalizes MPI. There is one.
void CallBeforeFinalize(void (*function)());

// False once MPI is finalized, and in a process that was forked from the one that initialised it: no function of MPI
// may be called then.
bool CanCallMpi();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_MPI_MPI_LIBRARY_H_
