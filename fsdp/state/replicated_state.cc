// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/replicated_state.h"

#include <set>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

absl::Status NoMemory(const char* what, const std::string& name) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, " \"", name, "\" has no memory, so no state dict can hold it; materialise it first"));
}

}  // namespace

absl::StatusOr<std::vector<ReplicatedTensor>> ReplicatedTensors(Module& root, const UnitStore& units) {
  std::vector<ReplicatedTensor> tensors;
  std::set<const void*> known;
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->parameters) known.insert(parameter.get());
  }
  for (const auto& [name, parameter] : root.NamedParameters()) {
    if (!known.insert(parameter.get()).second) continue;
    if (!parameter->data.defined()) return NoMemory("ignored parameter", name);
    tensors.push_back({name, parameter->data, parameter->dtype});
  }
  for (const auto& [name, buffer] : root.NamedBuffers()) {
    if (!known.insert(buffer.get()).second || buffer->persistence == BufferPersistence::kNonPersistent) continue;
    if (!buffer->data.defined()) return NoMemory("buffer", name);
    tensors.push_back({name, buffer->data, buffer->dtype});
  }
  return tensors;
}

}  // namespace fsdp
