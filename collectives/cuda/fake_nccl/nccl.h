// SPDX-License-Identifier: Apache-2.0
//
// The part of NCCL's nccl.h (2.28) that nccl_communicator.cc uses, for fake_nccl.cc, which implements it between
// threads and needs no GPU. Names and values are NCCL's; the real communicator is compiled against NCCL's own header,
// so a difference between the two does not compile.
#ifndef FSDP_COLLECTIVES_FAKE_NCCL_NCCL_H_
#define FSDP_COLLECTIVES_FAKE_NCCL_NCCL_H_

#include <cuda_runtime_api.h>

#include <climits>
#include <cstddef>

// Opaque, as in NCCL; made by ncclCommInitRankConfig and ncclCommSplit, freed by ncclCommDestroy or ncclCommAbort.
struct ncclComm;
using ncclComm_t = ncclComm*;

// Identifies a communicator that is being created; rank 0 creates the id and the other ranks get its bytes.
struct ncclUniqueId {
  char internal[128];
};

// ncclInProgress is the result of a non-blocking call that has not ended; ncclCommGetAsyncError then reports its end.
enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

// The fake models only these settings. `blocking` of 0 makes calls return before the peers have made theirs.
struct ncclConfig_t {
  int blocking;
  int CTAPolicy;
};
#define NCCL_CONFIG_INITIALIZER \
  { INT_MIN, INT_MIN }

// All-gathers into windows use copy engines.
#define NCCL_CTA_POLICY_ZERO 0x02

// Memory of all ranks of a communicator that is registered with each other.
struct ncclWindow_vidmem;
using ncclWindow_t = ncclWindow_vidmem*;
#define NCCL_WIN_COLL_SYMMETRIC 0x01

// ncclRedOpCreatePreMulSum creates further values, up to ncclMaxRedOp.
enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclMaxRedOp = 0x7fffffff };

// The types that the real communicator uses. Bytes represent every type that is only moved.
enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

// The location of the scalar of ncclRedOpCreatePreMulSum, and when it is read.
enum ncclScalarResidence_t { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

// 22809 for 2.28.9.
ncclResult_t ncclGetVersion(int* version);

// Communicators. Creating and splitting are collective; the other calls concern one rank.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
// Texts for people; ncclGetLastError accepts null.
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);

// Memory of the current GPU, and its registration with a communicator, which the fake only counts.
ncclResult_t ncclMemAlloc(void** data, size_t nbytes);
ncclResult_t ncclMemFree(void* data);
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t nbytes, void** handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);

// Windows. Registering is collective: the call returns ncclSuccess, and `win` is set when the communicator is no longer
// in progress; null if the GPUs do not reach each other's memory. Deregistering concerns one rank.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

// A sum of inputs that are first multiplied by a scalar.
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

// Calls between these two are launched together, by ncclGroupEnd.
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

// Collectives: counts are in elements of `type`, of one rank's input (all_gather) or output (reduce_scatter). The
// stream runs them when all ranks have come.
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);

#endif  // FSDP_COLLECTIVES_FAKE_NCCL_NCCL_H_
