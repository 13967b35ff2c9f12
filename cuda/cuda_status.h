// SPDX-License-Identifier: Apache-2.0
//
// CudaStatus: the result of a call of the CUDA runtime as a Status that names the call and the device. Includes CUDA's
// headers, so it is only for cuda/, nn/cuda/, collectives/cuda/ and optim's cuda_* files.
#ifndef FSDP_CUDA_CUDA_STATUS_H_
#define FSDP_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace fsdp {

// "cuda:0: cudaEventRecord: an illegal memory access was encountered". kResourceExhausted if memory is exhausted,
// kUnavailable if there is no usable GPU or driver, else kInternal. Clears the thread's last error, so that a later
// kernel launch does not report it.
//   FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "cudaSetDevice", device));
absl::Status CudaStatus(cudaError_t error, std::string_view call, int device);

// Call it after a kernel launch: CudaStatus of the launch itself.
inline absl::Status CudaLaunchStatus(std::string_view kernel, int device) {
  return CudaStatus(cudaGetLastError(), kernel, device);
}

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_STATUS_H_
