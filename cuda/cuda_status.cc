// SPDX-License-Identifier: Apache-2.0
//
// Distinguishes CUDA errors of the machine (no driver, no GPU: kUnavailable), of memory, and of the program or a broken
// GPU (kInternal). The message contains the name of the call, because CUDA reports errors of earlier asynchronous work
// from any later call.

#include "fsdp/cuda/cuda_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, std::string_view call, int device) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return absl::Status(CodeOf(error),
                      absl::StrCat("cuda:", device, ": ", std::string(call), ": ", cudaGetErrorString(error)));
}

}  // namespace fsdp
