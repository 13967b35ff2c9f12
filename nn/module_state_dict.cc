// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/module_state_dict.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// The one tensor of `sharded` that has all its elements; undefined if it is empty.
absl::StatusOr<Tensor> WholeOf(const std::string& name, const ShardedTensor& sharded) {
  // An empty tensor has no shard, so a missing shard is not an error.
  if (sharded.shape.numel() == 0) return Tensor();
  const Interval all = {0, sharded.shape.numel()};
  if (sharded.shards.size() != 1 || sharded.shards[0].interval != all) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\" ", sharded.shape.ToString(),
                                                   " is not whole here, expected a FULL state dict"));
  }
  return sharded.shards[0].data;
}

struct Copy {
  Tensor from, to;
};

absl::StatusOr<Copy> CopyOf(const std::string& name, const ShardedTensor& from, const ShardedTensor& to) {
  if (from.shape != to.shape || from.dtype != to.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": ", std::string(DTypeName(from.dtype)), " ",
                                                   from.shape.ToString(), " in the state dict != wanted ",
                                                   std::string(DTypeName(to.dtype)), " ", to.shape.ToString()));
  }
  Copy copy;
  FSDP_ASSIGN_OR_RETURN(copy.from, WholeOf(name, from));
  FSDP_ASSIGN_OR_RETURN(copy.to, WholeOf(name, to));
  return copy;
}

absl::Status NamesDiffer(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected) {
  if (missing.empty() && unexpected.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the state dict is of another module: missing names: [",
                                                 absl::StrJoin(missing, ", "), "], unexpected names: [",
                                                 absl::StrJoin(unexpected, ", "), "]"));
}

}  // namespace

absl::StatusOr<StateDict> GetModuleStateDict(Module& module) {
  module.AssignNames();
  StateDict state;
  const auto add = [&state](const std::string& name, const std::string& fqn, const Tensor& data) {
    // A further name of a shared parameter; AssignNames has set fqn to the first.
    if (name != fqn) {
      state.aliases[name] = fqn;
    } else {
      state.Set(StateKey::Model(fqn), ShardedTensor::Whole(data));
    }
  };
  for (const auto& [name, parameter] : module.NamedParameters()) {
    FSDP_ASSIGN_OR_RETURN(const Tensor data, parameter->Data());
    add(name, parameter->fqn, data);
  }
  for (const auto& [name, buffer] : module.NamedBuffers()) {
    if (buffer->persistence == BufferPersistence::kPersistent) add(name, buffer->fqn, buffer->data);
  }
  return state;
}

absl::Status LoadModuleStateDict(const StateDict& state, Module& module, Stream& stream) {
  FSDP_ASSIGN_OR_RETURN(const StateDict wanted, GetModuleStateDict(module));
  std::vector<Copy> copies;
  std::vector<std::string> missing, unexpected;
  for (const auto& [key, value] : wanted.entries()) {
    const std::optional<StateKey> found = state.Resolve(key, wanted.aliases);
    const ShardedTensor* from = found.has_value() ? state.FindTensor(*found) : nullptr;
    if (from == nullptr) {
      missing.push_back(key.fqn);
      continue;
    }
    // All checks come before the first copy, so that an error leaves the module unchanged.
    FSDP_ASSIGN_OR_RETURN(Copy copy, CopyOf(key.fqn, *from, std::get<ShardedTensor>(value)));
    if (copy.to.defined()) copies.push_back(std::move(copy));
  }
  // The other direction finds names that the module does not have, under any of its aliases.
  for (const auto& [key, value] : state.entries()) {
    if (key.section == StateKey::Section::kModel && !wanted.Resolve(key, state.aliases).has_value()) {
      unexpected.push_back(key.fqn);
    }
  }
  FSDP_RETURN_IF_ERROR(NamesDiffer(missing, unexpected));
  for (const Copy& copy : copies) stream.CopyAsync(copy.to.data(), copy.from.data(), copy.to.nbytes());
  // The state's tensors may go after the return, so the copies must have ended.
  return stream.Synchronize();
}

}  // namespace fsdp
