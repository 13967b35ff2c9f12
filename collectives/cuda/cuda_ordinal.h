// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_COLLECTIVES_CUDA_CUDA_ORDINAL_H_
#define FSDP_COLLECTIVES_CUDA_CUDA_ORDINAL_H_

#include "absl/status/statusor.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// CUDA's ordinal of the GPU of `device`, for cudaSetDevice. Creates a temporary stream. kInvalidArgument if `device` is
// not a GPU. Other errors as Device::CreateStream.
absl::StatusOr<int> CudaOrdinal(Device& device);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_CUDA_ORDINAL_H_
