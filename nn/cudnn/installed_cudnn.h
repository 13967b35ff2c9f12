// SPDX-License-Identifier: Apache-2.0
//
// InstalledCudnn: the cuDNN that this process uses. The only function that reads FSDP_CUDNN; FSDP_CUDNN=0 in the
// environment turns cuDNN off. In an emulated program it is fake_cudnn.h's, if a test has installed it.
#ifndef FSDP_NN_CUDNN_INSTALLED_CUDNN_H_
#define FSDP_NN_CUDNN_INSTALLED_CUDNN_H_

#include "absl/status/statusor.h"
#include "fsdp/nn/cudnn/cudnn_library.h"

namespace fsdp {

// libcudnn.so.9, as the dynamic loader finds it: loaded by the first call, and the same for the life of the process.
// kNotFound or kFailedPrecondition, with the reason, if it cannot be used. Thread-safe.
absl::StatusOr<const CudnnLibrary*> InstalledCudnn();

}  // namespace fsdp

#endif  // FSDP_NN_CUDNN_INSTALLED_CUDNN_H_
