// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/comm_memory.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

std::string Describe(int64_t numel, DType dtype, const DeviceId& device) {
  return absl::StrCat("[", numel, "] in ", std::string(DTypeName(dtype)), " on ", DeviceName(device));
}

}  // namespace

absl::Status CheckCommMemory(const Tensor& memory, DType dtype, const Unit& unit, int64_t numel,
                             std::string_view comm) {
  const DeviceId device = unit.groups.shard->device()->id();
  if (memory.defined() && memory.numel() == numel && memory.dtype() == dtype && memory.device() == device) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(comm), " of unit ", unit.display_name(), " allocated ",
      memory.defined() ? Describe(memory.numel(), memory.dtype(), memory.device()) : std::string("an undefined tensor"),
      ": expected ", Describe(numel, dtype, device)));
}

}  // namespace fsdp
