// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/torch/torch_state.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "checkpoint/torch/torch_optimizer.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

constexpr std::array kModelNames = {"model", "state_dict", "module", "model_state_dict"};
constexpr std::array kOptimizerNames = {"optim", "optimizer", "optimizer_state_dict", "optim_state_dict"};

bool HoldsTensor(const TorchNode& node) {
  return node.kind() == Kind::kTensor || std::any_of(node.members().begin(), node.members().end(),
                                                     [](const auto& member) { return HoldsTensor(member.second); });
}

// FSDP1's LOCAL_STATE_DICT, or the raw state dict of a flat parameter.
absl::Status CheckNotFlat(const std::string& name) {
  if (!absl::StrContains(name, "flat_param")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Quote(name),
      " is a flat parameter of FSDP1, which does not say where its parameters lie; save a FULL or SHARDED ",
      "state dict instead, under their own names"));
}

class StateBuilder {
 public:
  explicit StateBuilder(const std::vector<TorchLeafType>& tensors) : tensors_(tensors) {}

  absl::StatusOr<TorchState> Build(const TorchNode& whole) {
    TorchNode storage;
    const TorchNode& root = Expanded(whole, storage);
    if (!root.is_branch() || root.is_list) {
      return absl::InvalidArgumentError("it holds no dict, but a state dict is expected");
    }
    if (IsOptimizer(root)) {
      RETURN_IF_ERROR(AddOptimizer(root));
      return std::move(state_);
    }
    ASSIGN_OR_RETURN(const std::string model, FindSection(root, kModelNames, &HoldsTensor));
    ASSIGN_OR_RETURN(const std::string optimizer, FindSection(root, kOptimizerNames, &IsOptimizer));
    if (!model.empty()) RETURN_IF_ERROR(AddModel(*root.Find(model), "", /*extra_prefix=*/model + "."));
    for (const auto& [name, node] : root.members()) {
      if (name == model || name == optimizer) continue;
      const bool is_model = model.empty() && optimizer.empty() && HoldsTensor(node);
      RETURN_IF_ERROR(is_model ? AddModelNode(name, node, "") : AddExtra(name, node));
    }
    if (!optimizer.empty()) RETURN_IF_ERROR(AddOptimizer(*root.Find(optimizer)));
    return std::move(state_);
  }

 private:
  // The one member with one of `names` that `is_one`; empty where there is none.
  template <typename Names>
  absl::StatusOr<std::string> FindSection(const TorchNode& root, const Names& names, bool (*is_one)(const TorchNode&)) {
    std::string found;
    for (const char* name : names) {
      const TorchNode* node = root.Find(name);
      if (node == nullptr || (!node->is_branch() && node->kind() != Kind::kValue) || !is_one(*node)) continue;
      if (!found.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("it has both ", Quote(found), " and ", Quote(name), ", and only one of them can be meant"));
      }
      found = name;
    }
    return found;
  }

  static bool IsOptimizer(const TorchNode& node) { return IsTorchOptimizer(node); }

  absl::Status AddModel(const TorchNode& node, const std::string& prefix, const std::string& extra_prefix) {
    for (const auto& [name, member] : node.members()) {
      RETURN_IF_ERROR(AddModelNode(prefix + name, member, extra_prefix));
    }
    return absl::OkStatus();
  }

  absl::Status AddModelNode(const std::string& name, const TorchNode& node, const std::string& extra_prefix) {
    RETURN_IF_ERROR(CheckNotFlat(name));
    if (node.is_branch()) return AddModel(node, name + ".", extra_prefix);
    if (node.kind() == Kind::kValue) return AddExtra(extra_prefix + name, node);
    const TorchLeafType& type = tensors_[node.tensor()];
    if (!type.identity.empty()) {
      const auto [at, is_new] = first_names_.try_emplace(type.identity, name);
      if (!is_new) {
        state_.contents.aliases[name] = at->second;
        return absl::OkStatus();
      }
    }
    return AddTensor(StateKey::Model(name), node.tensor());
  }

  absl::Status AddTensor(const StateKey& key, int index) {
    if (state_.contents.contains(key)) return Twice(key);
    ShardedTensor tensor;
    tensor.dtype = tensors_[index].dtype;
    tensor.shape = tensors_[index].shape;
    state_.contents.Set(key, std::move(tensor));
    state_.leaves[key] = {index, ""};
    return absl::OkStatus();
  }

  // Values as texts, tensors as they are; where the two are mixed, under their path.
  absl::Status AddExtra(const std::string& name, const TorchNode& node) {
    const StateKey key = StateKey::Extra(name);
    if (node.kind() == Kind::kTensor) return AddTensor(key, node.tensor());
    if (HoldsTensor(node)) {
      for (const auto& [member, child] : node.members())
        RETURN_IF_ERROR(AddExtra(absl::StrCat(name, ".", member), child));
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const PythonJson json, node.ToJson());
    if (state_.contents.contains(key)) return Twice(key);
    if (name == "step" && json.is_number_integer()) state_.step = json.get<int64_t>();
    state_.contents.Set(key, TextOfPython(json));
    return absl::OkStatus();
  }

  absl::Status AddOptimizer(const TorchNode& node) {
    ASSIGN_OR_RETURN(TorchOptimizer optimizer, ReadTorchOptimizer(node, tensors_, state_.contents));
    for (auto& [key, leaf] : optimizer.state) {
      if (state_.contents.contains(key)) return Twice(key);
      ShardedTensor tensor;
      tensor.dtype = leaf.dtype;
      tensor.shape = leaf.tensor < 0 ? Shape() : tensors_[leaf.tensor].shape;
      state_.contents.Set(key, std::move(tensor));
      state_.leaves[key] = {leaf.tensor, std::move(leaf.bytes)};
    }
    if (!optimizer.param_groups.empty())
      state_.contents.Set(StateKey::ParamGroups(), std::move(optimizer.param_groups));
    return absl::OkStatus();
  }

  static absl::Status Twice(const StateKey& key) {
    return absl::DataLossError(absl::StrCat(Quote(key.ToString()), " is there twice"));
  }

  const std::vector<TorchLeafType>& tensors_;
  TorchState state_;
  std::map<std::string, std::string> first_names_;  // by identity
};

}  // namespace

absl::StatusOr<TorchState> StateOfTree(const TorchNode& root, const std::vector<TorchLeafType>& tensors) {
  return StateBuilder(tensors).Build(root);
}

}  // namespace fsdp
