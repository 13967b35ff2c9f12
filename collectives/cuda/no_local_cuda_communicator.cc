// SPDX-License-Identifier: Apache-2.0
//
// local_cuda_communicator.h in builds without the CUDA Toolkit (see BUILD.bazel).
#include "fsdp/collectives/cuda/local_cuda_communicator.h"

namespace fsdp {

absl::StatusOr<std::vector<std::shared_ptr<CudaCommunicator>>> CreateLocalCudaCommunicators(
    const std::vector<std::shared_ptr<Device>>&) {
  return absl::FailedPreconditionError("backend local on GPUs: this program was built without the CUDA Toolkit");
}

absl::StatusOr<std::vector<std::unique_ptr<ProcessGroup>>> CreateLocalCudaGroups(
    const std::vector<std::shared_ptr<Device>>& devices, absl::Duration) {
  return CreateLocalCudaCommunicators(devices).status();
}

}  // namespace fsdp
