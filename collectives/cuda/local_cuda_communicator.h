// SPDX-License-Identifier: Apache-2.0
//
// LocalCudaCommunicators: ranks that are threads of one process, on one GPU or on several that reach each other's
// memory. A rank's launch meets its peers' launches on the host, to exchange pointers and events; afterwards only
// events order the work on the GPU's streams: copies from peers' memory, and one kernel that reduces in the order of
// ranks (reduce_rows_cuda.h), so sums equal the host backends' bit for bit.
#ifndef FSDP_COLLECTIVES_CUDA_LOCAL_CUDA_COMMUNICATOR_H_
#define FSDP_COLLECTIVES_CUDA_LOCAL_CUDA_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/cuda/cuda_communicator.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// A communicator for each device, by rank. kFailedPrecondition if two GPUs do not reach each other's memory;
// kInvalidArgument for more ranks than the kernel takes (64).
absl::StatusOr<std::vector<std::shared_ptr<CudaCommunicator>>> CreateLocalCudaCommunicators(
    const std::vector<std::shared_ptr<Device>>& devices);

// A group of backend "local", as CreateLocalGroups (host/local_groups.h), on CUDA devices.
absl::StatusOr<std::vector<std::unique_ptr<ProcessGroup>>> CreateLocalCudaGroups(
    const std::vector<std::shared_ptr<Device>>& devices, absl::Duration timeout = absl::Minutes(10));

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_LOCAL_CUDA_COMMUNICATOR_H_
