// SPDX-License-Identifier: Apache-2.0
//
// nccl_process_group.h in builds without NCCL (see BUILD.bazel).
#include "fsdp/collectives/cuda/nccl_process_group.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateNcclGroup(std::unique_ptr<ProcessGroup>, std::shared_ptr<Device>,
                                                              absl::Duration, int) {
  return absl::FailedPreconditionError(
      "backend nccl: this program was built without NCCL; build it on a machine with the CUDA Toolkit and "
      "nccl.h (libnccl-dev)");
}

}  // namespace fsdp
