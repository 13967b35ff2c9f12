// SPDX-License-Identifier: Apache-2.0
//
// The CUDA device: memory of one GPU from CUDA's pool, streams, and the kernels of tensor/ops.h. This header exists in
// every build: in a build without CUDA there are no devices, and creating one fails with the reason. No CUDA header is
// needed to use it.
#ifndef FSDP_CUDA_CUDA_DEVICE_H_
#define FSDP_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// How many GPUs this process may use; an error that says why when it is none. Starts the CUDA driver, and a process
// forked after that cannot use CUDA unless it also execs.
absl::StatusOr<int> CudaDeviceCount();

// A device of its own on GPU `ordinal`, with its own memory count: each rank makes one, and ranks that are threads may
// share a GPU. kUnavailable without a GPU or a driver, kUnimplemented in a build without CUDA, kInvalidArgument for a
// GPU that is not there.
absl::StatusOr<std::shared_ptr<Device>> CreateCudaDevice(int ordinal);

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_DEVICE_H_
