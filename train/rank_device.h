// SPDX-License-Identifier: Apache-2.0
//
// Which device a rank of a program trains on.
#ifndef FSDP_TRAIN_RANK_DEVICE_H_
#define FSDP_TRAIN_RANK_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/tensor/device.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// How many GPUs there are for `choice`: 0 for kCpu, and for kAuto where there are none. kFailedPrecondition for kCuda
// where there are none, with the reason. Looks from a child process, so that this one may still fork.
absl::StatusOr<int> CountGpus(DeviceChoice choice);

// The device of the rank that `job` says this process is: its share of the host's cores, or the GPU of its local rank.
// With share_gpu it gives the process an NCCL_HOSTID of its own, unless there is one, since NCCL refuses two ranks of
// one host on one GPU: to be called before threads start. kFailedPrecondition without a GPU for kCuda; kInvalidArgument
// when ranks outnumber GPUs that they may not share.
absl::StatusOr<std::shared_ptr<Device>> CreateRankDevice(const Rendezvous& job, const RankDeviceOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_RANK_DEVICE_H_
