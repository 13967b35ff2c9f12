// SPDX-License-Identifier: Apache-2.0
//
// On which device the memory of a state is: the host cannot read or write that of a GPU, and would die of it.
#ifndef FSDP_CHECKPOINT_SOURCE_STATE_MEMORY_H_
#define FSDP_CHECKPOINT_SOURCE_STATE_MEMORY_H_

#include <string_view>

#include "absl/status/status.h"
#include "fsdp/tensor/device_id.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// kInvalidArgument, with the name of the first tensor that has elements neither in host memory nor on `device`, and
// `advice`.
absl::Status CheckMemory(const StateDict& state, const DeviceId& device, std::string_view advice);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_STATE_MEMORY_H_
