// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/torch/torch_optimizer.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "checkpoint/torch/parameter_ids.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;
using Section = StateKey::Section;

template <typename T>
TorchOptimizer::Leaf NumberLeaf(DType dtype, T value) {
  return {-1, dtype, std::string(reinterpret_cast<const char*>(&value), sizeof(value))};
}

// A number of the optimizer's state as a scalar tensor. "step" is float32, as torch writes it today, where that holds
// it.
absl::StatusOr<TorchOptimizer::Leaf> LeafOfNumber(const StateKey& key, const PythonJson& json) {
  if (json.is_boolean()) return NumberLeaf(DType::kBool, static_cast<uint8_t>(json.get<bool>()));
  if (json.is_number_integer()) {
    const auto value = json.get<int64_t>();
    const auto as_float = static_cast<float>(value);
    constexpr int64_t kExact = int64_t{1} << 24;
    if (key.state == "step" && value >= 0 && value <= kExact) return NumberLeaf(DType::kFloat32, as_float);
    return NumberLeaf(DType::kInt64, value);
  }
  if (json.is_number_float()) {
    const auto value = json.get<double>();
    if (key.state == "step" && static_cast<double>(static_cast<float>(value)) == value) {
      return NumberLeaf(DType::kFloat32, static_cast<float>(value));
    }
    return NumberLeaf(DType::kFloat64, value);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Quote(key.ToString()), " is neither a tensor nor a number, and cannot be kept"));
}

// "state.<fqn>.<name>" and "param_groups.<fqn>.<option>" as {"state": ..., "param_groups": ...}. Groups are the
// parameters whose options are the same.
absl::StatusOr<TorchNode> Unflattened(const TorchNode& flat) {
  TorchNode state;
  std::vector<std::pair<std::string, PythonJson>> options;  // by parameter
  std::map<std::string, size_t> index;
  for (const auto& [name, member] : flat.members()) {
    const size_t first = name.find('.');
    const size_t last = name.rfind('.');
    if (first == name.npos || last == first) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer state ", Quote(name), " names no parameter"));
    }
    const std::string fqn = name.substr(first + 1, last - first - 1);
    if (absl::StartsWith(name, "state.")) {
      TorchNode* parameter = state.Find(fqn);
      if (parameter == nullptr) parameter = state.Add(fqn, TorchNode());
      parameter->Add(name.substr(last + 1), member);
      continue;
    }
    ASSIGN_OR_RETURN(PythonJson value, member.ToJson());
    const auto [at, is_new] = index.try_emplace(fqn, options.size());
    if (is_new) options.emplace_back(fqn, PythonJson::object());
    options[at->second].second[name.substr(last + 1)] = std::move(value);
  }
  PythonJson groups = PythonJson::array();
  for (auto& [fqn, values] : options) {
    PythonJson* same = nullptr;
    for (PythonJson& group : groups) {
      PythonJson without = group;
      without.erase("params");
      if (without == values) same = &group;
    }
    if (same == nullptr) {
      values["params"] = PythonJson::array();
      groups.push_back(values);
      same = &groups.back();
    }
    (*same)["params"].push_back(fqn);
  }
  TorchNode node;
  node.Add("state", std::move(state));
  node.Add("param_groups", TorchNode::Value(std::move(groups)));
  return node;
}

bool IsFlattened(const TorchNode& node) {
  if (!node.is_branch() || node.members().empty()) return false;
  for (const auto& [name, member] : node.members()) {
    if (!absl::StartsWith(name, "state.") && !absl::StartsWith(name, "param_groups.")) return false;
  }
  return true;
}

class OptimizerReader {
 public:
  OptimizerReader(const std::vector<TorchLeafType>& tensors, const StateDict& model)
      : tensors_(tensors), model_(model) {}

  absl::StatusOr<TorchOptimizer> Read(const TorchNode& node) {
    ASSIGN_OR_RETURN(PythonJson groups, ReadGroups(*node.Find("param_groups")));
    TorchNode storage;
    const TorchNode& state = Expanded(*node.Find("state"), storage);
    if (!state.is_branch()) return absl::InvalidArgumentError("the optimizer's \"state\" is no dict");
    ASSIGN_OR_RETURN(names_, NamesOfIds(groups, state));
    for (const auto& [name, member] : state.members()) {
      ASSIGN_OR_RETURN(const std::string fqn, NameOf(name));
      TorchNode values;
      RETURN_IF_ERROR(AddState(fqn, "", Expanded(member, values)));
    }
    RETURN_IF_ERROR(RenameGroups(groups));
    optimizer_.param_groups = groups.dump(-1, ' ', false, PythonJson::error_handler_t::replace);
    return std::move(optimizer_);
  }

 private:
  static absl::StatusOr<PythonJson> ReadGroups(const TorchNode& node) {
    absl::StatusOr<PythonJson> json = node.ToJson();
    if (!json.ok())
      return absl::InvalidArgumentError(
          "a tensor in the optimizer's param_groups, such as a capturable lr, is not read");
    PythonJson groups = WithPlainTuples(*json);
    if (!groups.is_array()) return absl::InvalidArgumentError("the optimizer's param_groups are no list");
    for (const PythonJson& group : groups) {
      if (group.is_object() && group.contains("params") && group["params"].is_array()) continue;
      return absl::InvalidArgumentError("the optimizer's param_groups hold a group without a list of params");
    }
    return groups;
  }

  // By id in decimal; empty where parameters go by name.
  absl::StatusOr<std::map<std::string, std::string>> NamesOfIds(const PythonJson& groups, const TorchNode& state) {
    std::map<std::string, Shape> shapes;  // of the first state of as many dimensions as the parameter's
    for (const auto& [name, member] : state.members()) {
      for (const auto& [state_name, leaf] : member.members()) {
        if (leaf.kind() != Kind::kTensor || state_name == "step") continue;
        shapes.try_emplace(name, tensors_[leaf.tensor()].shape);
      }
    }
    return NamesOfParameterIds(groups, shapes, model_);
  }

  absl::StatusOr<std::string> NameOf(const std::string& name) const {
    std::string fqn = name;
    if (!names_.empty()) {
      const auto at = names_.find(name);
      if (at == names_.end()) {
        return absl::InvalidArgumentError(absl::StrCat("optimizer state of ", Quote(name), ", which no group has"));
      }
      fqn = at->second;
    }
    if (absl::StrContains(fqn, "flat_param")) {
      return absl::InvalidArgumentError(absl::StrCat("the optimizer state of ", Quote(fqn),
                                                     " is in FSDP1's flat form, which does not say where its ",
                                                     "parameters lie; save it with FSDP.optim_state_dict"));
    }
    const auto alias = model_.aliases.find(fqn);
    return alias == model_.aliases.end() ? fqn : alias->second;
  }

  absl::Status AddState(const std::string& fqn, const std::string& state, const TorchNode& node) {
    if (node.is_branch()) {
      for (const auto& [name, member] : node.members()) {
        RETURN_IF_ERROR(AddState(fqn, state.empty() ? name : absl::StrCat(state, ".", name), member));
      }
      return absl::OkStatus();
    }
    const StateKey key = StateKey::OptimState(fqn, state);
    if (node.kind() == Kind::kTensor) {
      optimizer_.state.emplace_back(key, TorchOptimizer::Leaf{node.tensor(), tensors_[node.tensor()].dtype, ""});
      return absl::OkStatus();
    }
    if (node.value().is_null()) return absl::OkStatus();  // a buffer that is not in use
    ASSIGN_OR_RETURN(TorchOptimizer::Leaf leaf, LeafOfNumber(key, node.value()));
    optimizer_.state.emplace_back(key, std::move(leaf));
    return absl::OkStatus();
  }

  absl::Status RenameGroups(PythonJson& groups) const {
    for (PythonJson& group : groups) {
      if (!names_.empty()) group.erase("param_names");
      for (PythonJson& param : group["params"]) {
        if (param.is_number_integer()) param = absl::StrCat(param.get<int64_t>());
        if (!param.is_string())
          return absl::InvalidArgumentError("a parameter of param_groups is neither a name nor an id");
        ASSIGN_OR_RETURN(param, NameOf(param.get<std::string>()));
      }
    }
    return absl::OkStatus();
  }

  const std::vector<TorchLeafType>& tensors_;
  const StateDict& model_;
  std::map<std::string, std::string> names_;
  TorchOptimizer optimizer_;
};

}  // namespace

bool IsTorchOptimizer(const TorchNode& node) {
  if (IsFlattened(node)) return true;
  TorchNode storage;
  const TorchNode& expanded = Expanded(node, storage);
  return expanded.is_branch() && expanded.Find("state") != nullptr && expanded.Find("param_groups") != nullptr;
}

absl::StatusOr<TorchOptimizer> ReadTorchOptimizer(const TorchNode& node, const std::vector<TorchLeafType>& tensors,
                                                  const StateDict& model) {
  TorchNode storage;
  const TorchNode& whole = Expanded(node, storage);
  if (!IsFlattened(whole)) return OptimizerReader(tensors, model).Read(whole);
  ASSIGN_OR_RETURN(const TorchNode nested, Unflattened(whole));
  return OptimizerReader(tensors, model).Read(nested);
}

const TorchNode& Expanded(const TorchNode& node, TorchNode& storage) {
  if (node.kind() != Kind::kValue || !node.value().is_object() || node.value().contains(kPythonTag)) return node;
  storage = TorchNode();
  for (const auto& [name, value] : node.value().items()) storage.Add(name, TorchNode::Value(value));
  return storage;
}

}  // namespace fsdp
