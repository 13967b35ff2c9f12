// SPDX-License-Identifier: Apache-2.0
//
// The CUDA device: memory of one GPU from CUDA's pool, streams, and the kernels of tensor/ops.h. This header exists in
// every build: a build without CUDA has no devices, and creating one fails with the reason. It includes no CUDA header.
#ifndef FSDP_CUDA_CUDA_DEVICE_H_
#define FSDP_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// The number of GPUs that this process may use; an error with the reason if there is none. Starts the CUDA driver; a
// process forked afterwards cannot use CUDA unless it also execs.
absl::StatusOr<int> CudaDeviceCount();

// A new device on GPU `ordinal`, with its own memory count: each rank creates one, and ranks that are threads may share
// a GPU. kUnavailable without a GPU or a driver, kUnimplemented in a build without CUDA, kInvalidArgument for a GPU
// that does not exist.
absl::StatusOr<std::shared_ptr<Device>> CreateCudaDevice(int ordinal);

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_DEVICE_H_
