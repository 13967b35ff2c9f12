// SPDX-License-Identifier: Apache-2.0
//
// Checks the device of a state's memory: a process that accesses GPU memory from the host dies.
#ifndef FSDP_CHECKPOINT_SOURCE_STATE_MEMORY_H_
#define FSDP_CHECKPOINT_SOURCE_STATE_MEMORY_H_

#include <string_view>

#include "absl/status/status.h"
#include "fsdp/tensor/device_id.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// kInvalidArgument, with `advice` and the name of the first tensor that has elements neither in host memory nor on
// `device`.
absl::Status CheckMemory(const StateDict& state, const DeviceId& device, std::string_view advice);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_STATE_MEMORY_H_
