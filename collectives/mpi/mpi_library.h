// SPDX-License-Identifier: Apache-2.0
//
// The MPI library of this process, which is one for the whole process, whoever initialised it.
//
// Nothing of MPI is linked: the first use loads libfsdp_mpi.so, and with it the MPI that it was made with
// (mpi_functions.h). A program that is linked with the same MPI shares it.
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
#include "fsdp/collectives/mpi/mpi_functions.h"

namespace fsdp {

// Loads a libfsdp_mpi.so; `path` as of dlopen(3). kFailedPrecondition if it, or its MPI, is not there, or if it is of
// another version.
absl::StatusOr<const MpiFunctions*> LoadMpiFrom(const std::string& path);

// The functions of this process's libfsdp_mpi.so. Only after StartMpi has succeeded once.
const MpiFunctions& Mpi();

// Where this process is in MPI_COMM_WORLD.
struct MpiPlace {
  int rank = 0;
  int size = 1;
};

// Loads the MPI library, and calls MPI_Init_thread unless MPI is initialised already. MPI_Init_thread waits for all
// processes that this MPI's launcher started. kFailedPrecondition if MPI cannot be loaded, if it is finalized, if its
// thread level is below MPI_THREAD_MULTIPLE, or if this process was forked from the one that initialised it. An error
// inside of MPI_Init_thread ends the process: that is MPI's rule.
absl::StatusOr<MpiPlace> StartMpi();

// "Open MPI v4.1.4"; once StartMpi was called.
std::string MpiVersion();

// "MPI_ERR_TRUNCATE: message truncated"
std::string MpiReason(int code);

// OK for 0; else kUnavailable: "MPI_Isend: <reason>".
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
