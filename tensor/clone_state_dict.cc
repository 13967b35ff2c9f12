// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/clone_state_dict.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"

namespace fsdp {
namespace {

absl::StatusOr<Tensor> Clone(const std::string& name, const Tensor& t, Stream& stream) {
  Device& device = stream.device();
  const bool on_host = t.device().type == DeviceType::kCpu;
  if (!on_host && t.device() != device.id()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\" is on ", DeviceName(t.device()),
                                                   ", expected host memory or ", DeviceName(device.id()),
                                                   ", the device of the stream"));
  }
  const bool pinned = on_host && device.type() != DeviceType::kCpu;
  FSDP_ASSIGN_OR_RETURN(Buffer memory, pinned ? device.AllocatePinned(t.nbytes()) : device.Allocate(t.nbytes()));
  stream.CopyAsync(memory.data(), t.data(), t.nbytes());
  return Tensor(std::move(memory), t.dtype(), t.shape());
}

}  // namespace

absl::StatusOr<StateDict> CloneStateDict(const StateDict& state, Stream& stream) {
  StateDict clone;
  clone.type = state.type;
  clone.aliases = state.aliases;
  clone.units = state.units;
  clone.attributes = state.attributes;
  clone.Reserve(state.entries().size());
  absl::Status status;
  for (const auto& [key, value] : state.entries()) {
    StateValue copy = value;
    if (auto* tensor = std::get_if<ShardedTensor>(&copy)) {
      for (ShardedTensor::Shard& shard : tensor->shards) {
        absl::StatusOr<Tensor> data = Clone(key.ToString(), shard.data, stream);
        if (data.ok()) {
          shard.data = *std::move(data);
        } else if (status.ok()) {
          status = data.status();
        }
      }
    }
    if (!status.ok()) break;
    clone.Set(key, std::move(copy));
  }
  // Also after an error: copies that were begun still read and write.
  const absl::Status copied = stream.Synchronize();
  FSDP_RETURN_IF_ERROR(status);
  FSDP_RETURN_IF_ERROR(copied);
  return clone;
}

}  // namespace fsdp
