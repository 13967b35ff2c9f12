// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/optimizer_stacks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

using Entry = StateDict::Entry;

constexpr char kParam[] = "param";

// Names of the float32 copy: Megatron-Core's, its older one, and DeepSpeed's.
bool IsMaster(const std::string& state) { return state == kParam || state == "fp32_param" || state == "fp32"; }

absl::Status Refused(const StateKey& key, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(Describe(key), " cannot be in a checkpoint of Megatron-Core: ", why));
}

class Builder {
 public:
  explicit Builder(const StateDict& contents) : contents_(contents) {}

  absl::StatusOr<OptimizerStacks> Build(const std::vector<Stack>& model) {
    for (const Stack& stack : model) {
      for (const Entry* const member : stack.members) parameters_.insert({member->first.fqn, member});
    }
    for (const Entry& entry : contents_.entries()) FSDP_RETURN_IF_ERROR(AddState(entry));
    for (const Stack& stack : model) FSDP_RETURN_IF_ERROR(AddStack(stack));
    return std::move(result_);
  }

 private:
  // States of one parameter, by Megatron-Core's name.
  using States = std::map<std::string, const Entry*>;

  absl::Status AddState(const Entry& entry) {
    const std::optional<StateName> name = StateOfKey(entry.first);
    if (!name) return absl::OkStatus();
    const std::optional<StateKey> key = contents_.Resolve(StateKey::Model(std::string(name->fqn)));
    const auto parameter = key ? parameters_.find(key->fqn) : parameters_.end();
    if (parameter == parameters_.end()) {
      return Refused(entry.first, "there is no tensor of the model whose state it is: leave it out with --exclude");
    }
    const auto* const tensor = std::get_if<ShardedTensor>(&entry.second);
    const bool is_number = tensor == nullptr && ScalarOfState(name->path, std::get<std::string>(entry.second));
    if (tensor == nullptr && (!is_number || name->path != "step")) {
      return Refused(entry.first, "its optimizers' state is tensors");
    }
    if (name->path == "step" && (is_number || tensor->shape.rank() == 0)) {
      result_.steps.push_back(&entry);
      return absl::OkStatus();
    }
    const Shape& shape = std::get<ShardedTensor>(parameter->second->second).shape;
    if (tensor->shape != shape) {
      return Refused(entry.first, absl::StrCat("it has the shape ", tensor->shape.ToString(), ", and its parameter ",
                                               shape.ToString()));
    }
    if (name->path.empty() || name->path.find('.') != std::string::npos) {
      return Refused(entry.first, "a dot in the name of a state ends it: choose another one with --rename");
    }
    const std::string state = IsMaster(name->path) ? kParam : name->path;
    if (!states_[key->fqn].emplace(state, &entry).second) {
      return Refused(entry.first, "the parameter has two float32 copies");
    }
    return absl::OkStatus();
  }

  absl::Status AddStack(const Stack& stack) {
    const States* const first = StatesOf(*stack.members[0]);
    for (const Entry* const member : stack.members) {
      if (NamesOf(StatesOf(*member)) == NamesOf(first)) continue;
      return Refused(member->first, absl::StrCat("it has the optimizer state ", TextOf(StatesOf(*member)), ", and ",
                                                 Quote(stack.members[0]->first.fqn), " has ", TextOf(first),
                                                 ": both are in the stack ", Quote(stack.key)));
    }
    if (first == nullptr) return absl::OkStatus();
    std::vector<std::string> names = NamesOf(first);
    if (first->count(kParam) == 0) names.insert(names.begin(), kParam);
    for (const std::string& name : names) {
      Stack& added =
          result_.stacks.emplace_back(Stack{absl::StrCat("optimizer.state.", name, ".", stack.key), stack.lengths, {}});
      for (const Entry* const member : stack.members) {
        const States& states = *StatesOf(*member);
        const auto state = states.find(name);
        added.members.push_back(state == states.end() ? member : state->second);
      }
      FSDP_RETURN_IF_ERROR(CheckDTypes(added));
    }
    return absl::OkStatus();
  }

  const States* StatesOf(const Entry& member) const {
    const auto states = states_.find(member.first.fqn);
    return states == states_.end() ? nullptr : &states->second;
  }

  static std::vector<std::string> NamesOf(const States* states) {
    std::vector<std::string> names;
    if (states == nullptr) return names;
    for (const auto& [name, entry] : *states) names.push_back(name);
    return names;
  }

  static std::string TextOf(const States* states) {
    const std::vector<std::string> names = NamesOf(states);
    return names.empty() ? "of nothing" : absl::StrJoin(names, ", ");
  }

  static absl::Status CheckDTypes(const Stack& stack) {
    const DType dtype = std::get<ShardedTensor>(stack.members[0]->second).dtype;
    for (const Entry* const member : stack.members) {
      const DType other = std::get<ShardedTensor>(member->second).dtype;
      if (other == dtype) continue;
      return Refused(member->first, absl::StrCat("it has the dtype ", std::string(DTypeName(other)), ", and ",
                                                 Quote(stack.members[0]->first.ToString()), " has ",
                                                 std::string(DTypeName(dtype)), ": both are in one tensor"));
    }
    return absl::OkStatus();
  }

  const StateDict& contents_;
  absl::flat_hash_map<std::string, const Entry*> parameters_;
  absl::flat_hash_map<std::string, States> states_;  // by parameter
  OptimizerStacks result_;
};

}  // namespace

absl::StatusOr<OptimizerStacks> OptimizerStacksOf(const StateDict& contents, const std::vector<Stack>& model) {
  return Builder(contents).Build(model);
}

}  // namespace fsdp
