/* SPDX-License-Identifier: Apache-2.0 */
#include "mpi_functions.h"

#include <mpi.h>
#include <stdio.h>

static MPI_Comm Communicator(MpiHandle handle) { return (MPI_Comm)handle; }

/* MPI's own null request is a pointer in one MPI and a number in another. */
static MPI_Request Request(MpiHandle handle) {
  return handle == FSDP_MPI_NO_REQUEST ? MPI_REQUEST_NULL : (MPI_Request)handle;
}

static MpiHandle HandleOf(MPI_Request request) {
  return request == MPI_REQUEST_NULL ? FSDP_MPI_NO_REQUEST : (MpiHandle)request;
}

static int IsInitialized(void) {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes;
}

static int IsFinalized(void) {
  int yes = 0;
  MPI_Finalized(&yes);
  return yes;
}

static int Initialize(void) {
  int provided = 0;
  return MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
}

static int ThreadLevel(void) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level >= MPI_THREAD_MULTIPLE) return FSDP_MPI_MULTIPLE;
  if (level >= MPI_THREAD_SERIALIZED) return FSDP_MPI_SERIALIZED;
  return level >= MPI_THREAD_FUNNELED ? FSDP_MPI_FUNNELED : FSDP_MPI_SINGLE;
}

static void LibraryVersion(char* text, size_t size) {
  char all[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(all, &length);
  snprintf(text, size, "%s", all);
}

static void ErrorText(int code, char* text, size_t size) {
  char all[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, all, &length) == MPI_SUCCESS) {
    snprintf(text, size, "%s", all);
  } else {
    snprintf(text, size, "MPI error %d", code);
  }
}

static int IsTruncation(int code) {
  int class_of_code = MPI_SUCCESS;
  MPI_Error_class(code, &class_of_code);
  return class_of_code == MPI_ERR_TRUNCATE;
}

static MpiHandle World(void) { return (MpiHandle)MPI_COMM_WORLD; }
static MpiHandle Self(void) { return (MpiHandle)MPI_COMM_SELF; }

static int RankOf(MpiHandle communicator) {
  int rank = 0;
  MPI_Comm_rank(Communicator(communicator), &rank);
  return rank;
}

static int SizeOf(MpiHandle communicator) {
  int size = 0;
  MPI_Comm_size(Communicator(communicator), &size);
  return size;
}

static int ReturnErrors(MpiHandle communicator) {
  return MPI_Comm_set_errhandler(Communicator(communicator), MPI_ERRORS_RETURN);
}

/* Collective over the members only, unlike MPI_Comm_split: other ranks of `parent` need not call it. */
static int CreateCommunicator(MpiHandle parent, int count, const int* ranks, int tag, MpiHandle* communicator) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group part = MPI_GROUP_NULL;
  MPI_Comm created = MPI_COMM_NULL;
  int error = MPI_Comm_group(Communicator(parent), &all);
  if (error != MPI_SUCCESS) return error;
  error = MPI_Group_incl(all, count, ranks, &part);
  if (error == MPI_SUCCESS) error = MPI_Comm_create_group(Communicator(parent), part, tag, &created);
  if (part != MPI_GROUP_NULL) MPI_Group_free(&part);
  MPI_Group_free(&all);
  *communicator = (MpiHandle)created;
  return error;
}

static int FreeCommunicator(MpiHandle communicator) {
  MPI_Comm handle = Communicator(communicator);
  return MPI_Comm_free(&handle);
}

static int SendBytes(const void* data, int nbytes, int peer, int tag, MpiHandle communicator, MpiHandle* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int error = MPI_Isend(data, nbytes, MPI_BYTE, peer, tag, Communicator(communicator), &made);
  *request = error == MPI_SUCCESS ? HandleOf(made) : FSDP_MPI_NO_REQUEST;
  return error;
}

static int ReceiveBytes(void* data, int nbytes, int source, int tag, MpiHandle communicator, MpiHandle* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int from = source == FSDP_MPI_ANY_SOURCE ? MPI_ANY_SOURCE : source;
  const int error = MPI_Irecv(data, nbytes, MPI_BYTE, from, tag, Communicator(communicator), &made);
  *request = error == MPI_SUCCESS ? HandleOf(made) : FSDP_MPI_NO_REQUEST;
  return error;
}

/* A request with an error counts as done, even if MPI does not null it: testing it again would be an error. */
static int Test(MpiHandle* request, MpiReceived* received) {
  MPI_Request tested = Request(*request);
  MPI_Status status = {0};
  int is_done = 0;
  const int error = MPI_Test(&tested, &is_done, &status);
  *request = error == MPI_SUCCESS ? HandleOf(tested) : FSDP_MPI_NO_REQUEST;
  if (error != MPI_SUCCESS || !is_done) return error;
  received->source = status.MPI_SOURCE;
  received->nbytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &received->nbytes);
  return error;
}

static int Cancel(MpiHandle* request) {
  MPI_Request cancelled = Request(*request);
  const int error = MPI_Cancel(&cancelled);
  *request = HandleOf(cancelled);
  return error;
}

static int MaxOfAll(int mine, int* most, MpiHandle communicator) {
  return MPI_Allreduce(&mine, most, 1, MPI_INT, MPI_MAX, Communicator(communicator));
}

static int Broadcast(void* data, int nbytes, int root, MpiHandle communicator) {
  return MPI_Bcast(data, nbytes, MPI_BYTE, root, Communicator(communicator));
}

const MpiFunctions* FsdpMpiFunctions(void);

const MpiFunctions* FsdpMpiFunctions(void) {
  static const MpiFunctions functions = {
      .version = FSDP_MPI_FUNCTIONS_VERSION,
      .is_initialized = IsInitialized,
      .is_finalized = IsFinalized,
      .initialize = Initialize,
      .finalize = MPI_Finalize,
      .thread_level = ThreadLevel,
      .library_version = LibraryVersion,
      .error_text = ErrorText,
      .is_truncation = IsTruncation,
      .world = World,
      .self = Self,
      .rank_of = RankOf,
      .size_of = SizeOf,
      .return_errors = ReturnErrors,
      .create_communicator = CreateCommunicator,
      .free_communicator = FreeCommunicator,
      .send = SendBytes,
      .receive = ReceiveBytes,
      .test = Test,
      .cancel = Cancel,
      .max_of_all = MaxOfAll,
      .broadcast = Broadcast,
  };
  return &functions;
}
