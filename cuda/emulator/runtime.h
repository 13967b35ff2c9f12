// SPDX-License-Identifier: Apache-2.0
//
// The state of the runtime that the emulator's parts share, and what its tests may reset.
#ifndef FSDP_CUDA_EMULATOR_RUNTIME_H_
#define FSDP_CUDA_EMULATOR_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fsdp {

// The calling thread's.
int EmulatedCurrentDevice();

// The error that ended the use of `device`, if one has.
cudaError_t EmulatedDeviceError(int device);

// The result of a call of the runtime: `error`, else the error that ended the use of the calling thread's device. Kept
// as the thread's last error.
cudaError_t Answer(cudaError_t error);

// Answers `error` to what `stream`, whose work is captured, was asked, and makes the capture invalid.
cudaError_t RefuseToCapture(CUstream_st& stream, cudaError_t error);

// Matrix products of 16-bit elements so far with an operand of which a column, in cuBLASLt's terms, begins at an
// address that is no multiple of 16 bytes, and large ones with a size that is no multiple of 8: a GPU computes them
// several times more slowly.
int64_t EmulatedMisalignedProducts();

// Forgets the errors that ended the use of devices.
void ResetEmulatedDevices();

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_RUNTIME_H_
