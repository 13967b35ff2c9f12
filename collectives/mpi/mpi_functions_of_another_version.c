/* SPDX-License-Identifier: Apache-2.0
 *
 * For mpi_library_test.cc: a libfsdp_mpi.so that belongs to another version of this program. */
#include "mpi_functions.h"

const MpiFunctions* FsdpMpiFunctions(void);

const MpiFunctions* FsdpMpiFunctions(void) {
  static const MpiFunctions functions = {.version = FSDP_MPI_FUNCTIONS_VERSION + 1};
  return &functions;
}
