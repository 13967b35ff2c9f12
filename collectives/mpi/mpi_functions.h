/* SPDX-License-Identifier: Apache-2.0
 *
 * MpiFunctions: the functions of MPI that libfsdp_mpi.so provides to a program, without the types of any MPI.
 *
 * MPI has no common ABI, so code that calls it is compiled for one MPI. Only mpi_functions.c does, as a separate
 * library that is loaded when a group needs it: a program starts on machines without MPI, and works with any MPI if
 * the libfsdp_mpi.so was built with it. The file is in C, because the compiler wrapper of any MPI compiles it:
 *
 *   mpicc -shared -fPIC -O2 -o libfsdp_mpi.so mpi_functions.c
 *
 * A function that returns an int returns MPI's error code, 0 for MPI_SUCCESS, unless its comment differs.
 */
#ifndef FSDP_COLLECTIVES_MPI_MPI_FUNCTIONS_H_
#define FSDP_COLLECTIVES_MPI_MPI_FUNCTIONS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An MPI_Comm or MPI_Request, which are pointers or ints. */
typedef uintptr_t MpiHandle;

/* A request that is done, or was never started. */
#define FSDP_MPI_NO_REQUEST ((MpiHandle)0)

/* As a source: any. */
#define FSDP_MPI_ANY_SOURCE (-1)

/* Thread levels, in MPI's order. */
enum { FSDP_MPI_SINGLE, FSDP_MPI_FUNNELED, FSDP_MPI_SERIALIZED, FSDP_MPI_MULTIPLE };

/* Increase with each change of this file. */
enum { FSDP_MPI_FUNCTIONS_VERSION = 1 };

/* The source of a message, and its bytes; set for receives only. */
typedef struct MpiReceived {
  int source;
  int nbytes;
} MpiReceived;

typedef struct MpiFunctions {
  int version; /* FSDP_MPI_FUNCTIONS_VERSION at the library's build; first, and read before anything else */

  /* The state of MPI in this process. The first two return 0 or 1. */
  int (*is_initialized)(void);
  int (*is_finalized)(void);
  int (*initialize)(void); /* MPI_Init_thread with MPI_THREAD_MULTIPLE */
  int (*finalize)(void);
  int (*thread_level)(void); /* of the enumeration above */
  /* Write at most `size` bytes with the zero that ends them. */
  void (*library_version)(char* text, size_t size);
  void (*error_text)(int code, char* text, size_t size);
  int (*is_truncation)(int code); /* 1: the message was longer than its receive */

  /* Communicators. */
  MpiHandle (*world)(void);
  MpiHandle (*self)(void);
  int (*rank_of)(MpiHandle communicator);
  int (*size_of)(MpiHandle communicator);
  int (*return_errors)(MpiHandle communicator); /* MPI_ERRORS_RETURN is its error handler from now on */
  /* MPI_Comm_create_group for these ranks of `parent`, in this order. */
  int (*create_communicator)(MpiHandle parent, int count, const int* ranks, int tag, MpiHandle* communicator);
  int (*free_communicator)(MpiHandle communicator);

  /* Messages, of bytes. A request becomes FSDP_MPI_NO_REQUEST when a test finds it done, also with an error. */
  int (*send)(const void* data, int nbytes, int peer, int tag, MpiHandle communicator, MpiHandle* request);
  int (*receive)(void* data, int nbytes, int source, int tag, MpiHandle communicator, MpiHandle* request);
  int (*test)(MpiHandle* request, MpiReceived* received);
  int (*cancel)(MpiHandle* request);

  /* Blocking. */
  int (*max_of_all)(int mine, int* most, MpiHandle communicator);
  int (*broadcast)(void* data, int nbytes, int root, MpiHandle communicator);
} MpiFunctions;

/* The only symbol of libfsdp_mpi.so. Never null; a static. */
typedef const MpiFunctions* (*GetMpiFunctions)(void);
#define FSDP_MPI_FUNCTIONS_SYMBOL "FsdpMpiFunctions"

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FSDP_COLLECTIVES_MPI_MPI_FUNCTIONS_H_ */
