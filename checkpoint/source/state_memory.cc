// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/state_memory.h"

#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {

absl::Status CheckMemory(const StateDict& state, const DeviceId& device, std::string_view advice) {
  for (const auto& [key, value] : state.entries()) {
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    for (const ShardedTensor::Shard& shard : tensor->shards) {
      const DeviceId& its = shard.data.buffer().device();
      // An empty shard is never accessed, so its device does not matter.
      if (its.type == DeviceType::kCpu || its == device || shard.data.nbytes() == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          Quote(key.ToString()), " is in the memory of ", DeviceName(its), "; expected host memory",
          device.type == DeviceType::kCpu ? "" : absl::StrCat(" or ", DeviceName(device)), ": ", std::string(advice)));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
