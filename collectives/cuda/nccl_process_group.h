// SPDX-License-Identifier: Apache-2.0
//
// CreateNcclGroup: backend "nccl": a CudaProcessGroup over NCCL. There in every build; without NCCL it says what to do.
#ifndef FSDP_COLLECTIVES_CUDA_NCCL_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_CUDA_NCCL_PROCESS_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// Of the ranks of `control`, a group of host memory; each gives its GPU. Collective. kFailedPrecondition where this
// build has no NCCL, or two ranks have one GPU and the same NCCL_HOSTID.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateNcclGroup(std::unique_ptr<ProcessGroup> control,
                                                              std::shared_ptr<Device> device, absl::Duration timeout);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_NCCL_PROCESS_GROUP_H_
