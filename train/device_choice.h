// SPDX-License-Identifier: Apache-2.0
//
// What --device=auto|cpu|cuda and --share_gpu say.
#ifndef FSDP_TRAIN_DEVICE_CHOICE_H_
#define FSDP_TRAIN_DEVICE_CHOICE_H_

namespace fsdp {

enum class DeviceChoice {
  kAuto,  // a GPU if there is one
  kCpu,
  kCuda,
};

struct RankDeviceOptions {
  DeviceChoice device = DeviceChoice::kAuto;
  bool share_gpu = false;  // ranks of this host may outnumber its GPUs
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_DEVICE_CHOICE_H_
