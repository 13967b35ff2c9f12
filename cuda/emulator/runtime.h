// SPDX-License-Identifier: Apache-2.0
//
// The state of the runtime that the emulator's parts share, and the functions with which tests reset it.
#ifndef FSDP_CUDA_EMULATOR_RUNTIME_H_
#define FSDP_CUDA_EMULATOR_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fsdp {

// The current device of the calling thread.
int EmulatedCurrentDevice();

// The error that ended the use of `device`, if one has.
cudaError_t EmulatedDeviceError(int device);

// The result of a call of the runtime: `error`, else the error that ended the use of the calling thread's device. Keeps
// it as the thread's last error.
cudaError_t Answer(cudaError_t error);

// Returns `error` for a call on `stream`, whose work is captured, and invalidates the capture.
cudaError_t RefuseToCapture(CUstream_st& stream, cudaError_t error);

// The number of slow products of 16-bit elements so far: a column of an operand, in cuBLASLt's terms, begins at an
// address that is not a multiple of 16 bytes, or the product is large and a size is not a multiple of 8. A GPU computes
// them several times more slowly.
int64_t EmulatedMisalignedProducts();

// The number of calls so far that launched a kernel, and of calls of cudaMemcpyAsync and cudaMemsetAsync, by which
// tests count what a GPU pays for each call. A capture counts, its replays do not.
int64_t EmulatedLaunches();
int64_t EmulatedCopies();
int64_t EmulatedMemsets();

// The number of products so far that read c: those with a beta other than 0.
int64_t EmulatedAddingProducts();

// Clears the errors that ended the use of devices.
void ResetEmulatedDevices();

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_RUNTIME_H_
