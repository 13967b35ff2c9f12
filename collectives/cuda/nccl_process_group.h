// SPDX-License-Identifier: Apache-2.0
//
// CreateNcclGroup: backend "nccl", a CudaProcessGroup over NCCL. Every build has the function; in a build without NCCL
// it returns an error that names the missing packages.
#ifndef FSDP_COLLECTIVES_CUDA_NCCL_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_CUDA_NCCL_PROCESS_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// A group of the ranks of `control`, a group in host memory; each rank passes its GPU. Every rank calls it. `timeout`:
// for setting up and for each collective. `hosts`: the number of hosts of the ranks; heartbeats are rarer with more
// hosts (heartbeat.h). kFailedPrecondition if this build has no NCCL, or if two ranks have the same GPU and the same
// NCCL_HOSTID.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateNcclGroup(std::unique_ptr<ProcessGroup> control,
                                                              std::shared_ptr<Device> device, absl::Duration timeout,
                                                              int hosts = 1);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_NCCL_PROCESS_GROUP_H_
