// SPDX-License-Identifier: Apache-2.0
//
// The MPI library of this process. A process has at most one, initialised by the program or by this library.
//
// MPI is not linked: the first use loads libfsdp_mpi.so, and with it the MPI for which it was built (mpi_functions.h).
// A program that is linked with the same MPI shares it.
//
//   - If the program initialised it, it stays the program's: we check its thread level, create our own communicators,
//     and never finalize it. MPICH passes errors of our messages to the error handler of MPI_COMM_WORLD, which ends the
//     process unless the program has set MPI_ERRORS_RETURN.
//   - Else the first use initialises it, with MPI_THREAD_MULTIPLE, and a normal end of the process (exit, or a return
//     from main) finalizes it. Not earlier, because MPI cannot be initialised twice, and a process may create groups
//     again. After a failure it is not finalized: MPI_Finalize waits for all ranks, of which some may be gone. mpirun
//     then reports that a rank ended without it, and ends the others.
//
// Thread-safe.
#ifndef FSDP_COLLECTIVES_MPI_MPI_LIBRARY_H_
#define FSDP_COLLECTIVES_MPI_MPI_LIBRARY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/collectives/mpi/mpi_functions.h"

namespace fsdp {

// Loads a libfsdp_mpi.so; `path` as in dlopen(3). kFailedPrecondition if it, or its MPI, is missing, or if its version
// differs.
absl::StatusOr<const MpiFunctions*> LoadMpiFrom(const std::string& path);

// The functions of this process's libfsdp_mpi.so. REQUIRES: StartMpi has succeeded once.
const MpiFunctions& Mpi();

// This process's place in MPI_COMM_WORLD.
struct MpiPlace {
  int rank = 0;
  int size = 1;
};

// Loads the MPI library, and calls MPI_Init_thread unless MPI is initialised already. MPI_Init_thread waits for all
// processes that this MPI's launcher started. kFailedPrecondition if MPI cannot be loaded, if it is finalized, if its
// thread level is below MPI_THREAD_MULTIPLE, or if this process was forked from the process that initialised it. By
// MPI's rules, an error inside of MPI_Init_thread ends the process.
absl::StatusOr<MpiPlace> StartMpi();

// "Open MPI v4.1.4"; REQUIRES: StartMpi was called.
std::string MpiVersion();

// "MPI_ERR_TRUNCATE: message truncated"
std::string MpiReason(int code);

// OK for 0; else kUnavailable: "MPI_Isend: <reason>".
absl::Status MpiStatus(int code, const char* function);

// A use of MPI: while one exists, or after one has failed, the end of the process does not finalize MPI.
class MpiUse {
 public:
  MpiUse();
  ~MpiUse();
  MpiUse(const MpiUse&) = delete;
  MpiUse& operator=(const MpiUse&) = delete;

  // Call it if an operation of this use may never end.
  void Fail();
};

// `function` is called at the end of the process, before it finalizes MPI. A later call replaces it.
void CallBeforeFinalize(void (*function)());

// False after MPI was finalized, and in a process that was forked from the process that initialised it: do not call any
// function of MPI then.
bool CanCallMpi();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_MPI_MPI_LIBRARY_H_
