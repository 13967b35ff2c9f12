// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/cuda/nccl_process_group.h"

#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/cuda/cuda_process_group.h"
#include "fsdp/collectives/cuda/nccl_communicator.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateNcclGroup(std::unique_ptr<ProcessGroup> control,
                                                              std::shared_ptr<Device> device, absl::Duration timeout,
                                                              int hosts) {
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<CudaCommunicator> communicator,
                        NcclCommunicator::Create(*control, device, timeout));
  return CudaProcessGroup::Create(std::move(control), std::move(communicator), std::move(device),
                                  {timeout, HeartbeatInterval(hosts)});
}

}  // namespace fsdp
