// SPDX-License-Identifier: Apache-2.0
//
// The device that a rank trains on: a GPU, or its share of the host's cores.
#ifndef FSDP_TRAIN_RANK_DEVICE_H_
#define FSDP_TRAIN_RANK_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/tensor/device.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// The number of GPUs for `choice`: 0 for kCpu, and for kAuto on a host without any. kFailedPrecondition, with the
// reason, for kCuda on such a host. Counts in a child process, so that this process may still fork.
absl::StatusOr<int> CountGpus(DeviceChoice choice);

// The device of this process, the rank that `job` describes: its share of the host's cores, or the GPU of its local
// rank. With share_gpu it sets NCCL_HOSTID in the environment, unless it is set, because NCCL refuses two ranks of one
// host on one GPU; call it before starting threads that read the environment. kFailedPrecondition for kCuda on a host
// without a GPU; kInvalidArgument when ranks outnumber GPUs that they may not share.
absl::StatusOr<std::shared_ptr<Device>> CreateRankDevice(const Rendezvous& job, const RankDeviceOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_RANK_DEVICE_H_
