// SPDX-License-Identifier: Apache-2.0
//
// Which errors of CUDA are the machine's (no driver, no GPU: kUnavailable), which are memory, and which are a program's
// fault or a broken GPU (kInternal). The name of the call stands in the message, because CUDA reports errors of earlier
// asynchronous work from whatever call comes next.

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
