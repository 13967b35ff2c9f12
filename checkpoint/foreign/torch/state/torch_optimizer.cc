// SPDX-License-Identifier: Apache-2.0
//
// Converts every form into one, then reads that form:
//
//   flattened {"state.a.weight.exp_avg": ...}  --Unflattened-->  {"state": ..., "param_groups": ...}
//
// Keys of "state" are names, ids or flat parameters. FindParameters decides which: names_ maps ids to names; units_
// maps keys of flat parameters to the parameters in them; both are empty when keys are already names. A flat
// parameter's state becomes one entry for each parameter in it, which is a range of the flat tensor: no element is
// read.
#include "fsdp/checkpoint/foreign/torch/state/torch_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"
#include "fsdp/checkpoint/foreign/torch/state/parameter_ids.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;
using Section = StateKey::Section;

template <typename T>
TorchOptimizerState Scalar(DType dtype, T value) {
  TorchNumber number;
  static_assert(sizeof(value) <= sizeof(number.bytes));
  std::memcpy(number.bytes.data(), &value, sizeof(value));
  return {.leaf = {number}, .dtype = dtype, .shape = {}};
}

// A Python number of the optimizer's state as a scalar tensor. "step" becomes float32, the dtype in today's PyTorch, if
// float32 holds the number exactly.
absl::StatusOr<TorchOptimizerState> StateOfNumber(const StateKey& key, const PythonJson& json) {
  if (json.is_boolean()) return Scalar(DType::kBool, static_cast<uint8_t>(json.get<bool>()));
  if (json.is_number_integer()) {
    const auto value = json.get<int64_t>();
    const auto as_float = static_cast<float>(value);
    constexpr int64_t kExact = int64_t{1} << 24;
    // 2^24 is the first integer whose successor float32 cannot hold.
    if (key.state == "step" && value >= 0 && value <= kExact) return Scalar(DType::kFloat32, as_float);
    return Scalar(DType::kInt64, value);
  }
  if (json.is_number_float()) {
    const auto value = json.get<double>();
    if (key.state == "step" && static_cast<double>(static_cast<float>(value)) == value) {
      return Scalar(DType::kFloat32, static_cast<float>(value));
    }
    return Scalar(DType::kFloat64, value);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Quote(key.ToString()), " is neither a tensor nor a number, and cannot be kept"));
}

// "state.<fqn>.<name>" and "param_groups.<fqn>.<option>" as {"state": ..., "param_groups": ...}. The flattened form
// does not keep groups, only the options of each parameter: parameters with equal options form a group.
absl::StatusOr<TorchNode> Unflattened(TorchNode flat, const TorchLeafTypes& tensors, const TorchTensorReader& read) {
  TorchNode state;
  std::vector<std::pair<std::string, PythonJson>> options;  // by parameter
  std::map<std::string, size_t> index;
  const auto add = [&](const std::string& name, TorchNode& member) -> absl::Status {
    const size_t first = name.find('.');
    const size_t last = name.rfind('.');
    if (first == name.npos || last == first) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer state ", Quote(name), " names no parameter"));
    }
    const std::string fqn = name.substr(first + 1, last - first - 1);
    if (absl::StartsWith(name, "state.")) {
      TorchNode* parameter = state.Find(fqn);
      if (parameter == nullptr) parameter = state.Add(fqn, TorchNode());
      parameter->Add(name.substr(last + 1), std::move(member));
      return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(PythonJson value, member.ToJson(tensors, read));
    const auto [at, is_new] = index.try_emplace(fqn, options.size());
    if (is_new) options.emplace_back(fqn, PythonJson::object());
    options[at->second].second[name.substr(last + 1)] = std::move(value);
    return absl::OkStatus();
  };
  FSDP_RETURN_IF_ERROR(flat.Consume(add));
  // Each group's options without "params", and its parameters.
  std::vector<std::pair<PythonJson, PythonJson>> of_groups;
  for (auto& [fqn, of_parameter] : options) {
    // Moved out of the pair's binding, which clang 14 does not let a lambda capture.
    PythonJson values = std::exchange(of_parameter, PythonJson());
    auto same =
        std::find_if(of_groups.begin(), of_groups.end(), [&](const auto& group) { return group.first == values; });
    if (same == of_groups.end()) same = of_groups.emplace(same, std::move(values), PythonJson::array());
    same->second.push_back(fqn);
  }
  PythonJson groups = PythonJson::array();
  for (auto& [values, params] : of_groups) {
    values["params"] = std::move(params);
    groups.push_back(std::move(values));
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
  OptimizerReader(const TorchLeafTypes& tensors, const StateDict& model, const TorchStateOptions& options,
                  const TorchOptimizerSink& sink)
      : tensors_(tensors), model_(model), options_(options), sink_(sink) {}

  absl::StatusOr<std::string> Read(TorchNode node) {
    FSDP_ASSIGN_OR_RETURN(PythonJson groups, ReadGroups(*node.Find("param_groups")));
    TorchNode state;  // DCP does not store an empty dict, such as the state of SGD without momentum
    if (TorchNode* const stored = node.Find("state")) state = std::move(*stored);
    Expand(state);
    if (!state.is_branch()) return absl::InvalidArgumentError("the optimizer's \"state\" is not a dict");
    FSDP_RETURN_IF_ERROR(FindParameters(groups, state));
    FSDP_RETURN_IF_ERROR(state.Consume([this](const std::string& name, TorchNode& member) {
      Expand(member);
      return AddParameter(name, member);
    }));
    return TextOf(groups);
  }

 private:
  absl::StatusOr<PythonJson> ReadGroups(const TorchNode& node) const {
    const absl::StatusOr<PythonJson> json = node.ToJson(tensors_, options_.read);
    if (!json.ok()) {
      return Annotate(json.status(), "the optimizer's param_groups");
    }
    PythonJson groups = WithPlainGroups(*json);
    if (!groups.is_array()) return absl::InvalidArgumentError("the optimizer's param_groups are not a list");
    for (PythonJson& group : groups) {
      group = WithNumbersForTensors(group);
      if (group.is_object() && group.contains("params") && group["params"].is_array()) continue;
      return absl::InvalidArgumentError("the optimizer's param_groups hold a group without a list of params");
    }
    return groups;
  }

  struct StateShapes {
    KeyShapes by_key;     // of each parameter whose state reveals its shape
    bool is_flat = true;  // no state has two dimensions or more
  };

  // A parameter's state has the parameter's shape, except numbers such as "step", which are scalars for all parameters.
  // So a state name that is a scalar for one parameter and not for others (exp_avg) means a parameter without
  // dimensions. Keys are views of `state`.
  StateShapes ShapesOf(const TorchNode& state) const {
    StateShapes shapes = {.by_key = KeyShapes(tensors_)};
    shapes.by_key.Reserve(state.members().size());
    std::set<std::string_view> shaped;  // states that have as many dimensions as their parameter
    std::vector<std::pair<std::string_view, std::string_view>> numbers;
    for (const auto& [name, member] : state.members()) {
      bool is_known = false;
      for (const auto& [state_name, leaf] : member.members()) {
        if (leaf.kind() != Kind::kTensor || state_name == "step") continue;
        const int rank = tensors_[leaf.tensor()].shape.rank();
        shapes.is_flat = shapes.is_flat && rank <= 1;
        if (rank == 0) {
          numbers.emplace_back(name, state_name);
        } else {
          if (!is_known) shapes.by_key.Add(name, leaf.tensor());
          is_known = true;
          shaped.insert(state_name);
        }
      }
    }
    for (const auto& [name, state_name] : numbers) {
      if (shaped.count(state_name) != 0) shapes.by_key.Add(name, std::nullopt);
    }
    shapes.by_key.Finish();
    return shapes;
  }

  // Finds names_, or units_ for the state of flat parameters. The shapes of the state decide: ids are tried as
  // parameters first, and state can be flat only if nothing in it has two dimensions. If both fail, the message has
  // both reasons.
  absl::Status FindParameters(PythonJson& groups, const TorchNode& state) {
    const auto [shapes, is_flat] = ShapesOf(state);
    absl::StatusOr<ParameterNames> names = NamesOfParameterIds(groups, shapes, model_);
    // Names need no lookup, unless they are names of flat parameters, which have to be divided.
    const bool goes_by_flat_names = names.ok() && names->empty() && HoldsFlatName(groups);
    if (names.ok() && !goes_by_flat_names) {
      names_ = *std::move(names);
      return absl::OkStatus();
    }
    if (!is_flat || shapes.empty()) return names.status();
    std::map<std::string, int64_t> sizes;
    shapes.ForEach(
        [&](std::string_view name, const Shape& shape) { sizes.try_emplace(std::string(name), shape.numel()); });
    absl::StatusOr<std::map<std::string, FlatUnit>> units =
        UnitsOfKeys(KeysOf(groups), sizes, ParametersOf(model_), options_.flat);
    if (!units.ok()) {
      const std::string before = names.ok() ? "" : absl::StrCat(std::string(names.status().message()), "; and ");
      return Annotate(units.status(), absl::StrCat(before, "as FSDP1's flat form"));
    }
    units_ = *std::move(units);
    return absl::OkStatus();
  }

  static std::string KeyOf(const PythonJson& param) {
    return param.is_string() ? param.get<std::string>()
                             : absl::StrCat(param.is_number_integer() ? param.get<int64_t>() : -1);
  }

  static std::vector<std::string> KeysOf(const PythonJson& groups) {
    std::vector<std::string> keys;
    for (const PythonJson& group : groups) {
      for (const PythonJson& param : group["params"]) keys.push_back(KeyOf(param));
    }
    return keys;
  }

  static bool HoldsFlatName(const PythonJson& groups) {
    const std::vector<std::string> keys = KeysOf(groups);
    return std::any_of(keys.begin(), keys.end(), IsFlatName);
  }

  absl::StatusOr<std::string> NameOf(const std::string& name) const {
    const std::string* const fqn = names_.empty() ? &name : names_.Find(name);
    if (fqn == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer state of ", Quote(name), ", which no group has"));
    }
    // State is stored once, under the name that the model's tensor has; an optimizer may know it by its other name.
    const auto alias = model_.aliases.find(*fqn);
    return alias == model_.aliases.end() ? *fqn : alias->second;
  }

  // Adds the state of the parameter or flat parameter `name`.
  absl::Status AddParameter(const std::string& name, const TorchNode& values) {
    if (units_.empty()) {
      FSDP_ASSIGN_OR_RETURN(const std::string fqn, NameOf(name));
      return AddState(fqn, "", values, nullptr);
    }
    const auto unit = units_.find(name);
    if (unit == units_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer state of ", Quote(name), ", which no group has"));
    }
    for (const FlatUnit::Part& part : unit->second.parts) FSDP_RETURN_IF_ERROR(AddState(part.fqn, "", values, &part));
    return absl::OkStatus();
  }

  // Adds the members of `node` as states of `fqn`, nested ones by their path. `part`: only this range of each flat
  // tensor; null: all of it.
  absl::Status AddState(const std::string& fqn, const std::string& state, const TorchNode& node,
                        const FlatUnit::Part* part) {
    if (node.is_branch()) {
      for (const auto& [name, member] : node.members()) {
        FSDP_RETURN_IF_ERROR(AddState(fqn, state.empty() ? name : absl::StrCat(state, ".", name), member, part));
      }
      return absl::OkStatus();
    }
    const StateKey key = StateKey::OptimState(fqn, state);
    if (node.kind() == Kind::kTensor) {
      const TorchLeafType& type = tensors_[node.tensor()];
      TorchOptimizerState value = {
          .leaf = {TorchTensorPart{.tensor = node.tensor()}}, .dtype = type.dtype, .shape = type.shape};
      if (part != nullptr && type.shape.rank() == 1) {
        if (part->offset + part->shape.numel() > type.shape.numel()) {
          return absl::InvalidArgumentError(absl::StrCat(Quote(key.ToString()), " reaches beyond the ",
                                                         type.shape.numel(), " elements of its flat parameter"));
        }
        value.shape = part->shape;
        value.leaf = {TorchTensorPart{.tensor = node.tensor(), .offset = part->offset}};
      }
      return sink_(key, std::move(value));
    }
    if (node.value().is_null()) return absl::OkStatus();  // torch saves an unused buffer as None
    FSDP_ASSIGN_OR_RETURN(TorchOptimizerState value, StateOfNumber(key, node.value()));
    return sink_(key, std::move(value));
  }

  static std::string JsonText(const PythonJson& json) {
    return json.dump(-1, ' ', false, PythonJson::error_handler_t::replace);
  }

  // The groups as JSON, with "params" by name. The text is assembled from its parts: a tree of JSON with a string for
  // each parameter would take twice as much memory as the text.
  absl::StatusOr<std::string> TextOf(PythonJson& groups) const {
    std::string text = "[";
    for (PythonJson& group : groups) {
      if (!names_.empty()) group.erase("param_names");
      absl::StrAppend(&text, text.size() == 1 ? "{" : ",{");
      bool is_first = true;
      for (const auto& [name, value] : group.items()) {
        absl::StrAppend(&text, is_first ? "" : ",", JsonText(name), ":");
        is_first = false;
        if (name == "params") {
          FSDP_RETURN_IF_ERROR(AppendNames(value, text));
        } else {
          absl::StrAppend(&text, JsonText(value));
        }
      }
      absl::StrAppend(&text, "}");
    }
    absl::StrAppend(&text, "]");
    // The text stays in memory with the state dict, and appending may have reserved twice its size.
    text.shrink_to_fit();
    return text;
  }

  absl::Status AppendNames(const PythonJson& params, std::string& text) const {
    std::string_view separator = "[";
    const auto append = [&](const std::string& name) {
      absl::StrAppend(&text, absl::string_view(separator.data(), separator.size()), JsonText(name));
      separator = ",";
    };
    for (const PythonJson& param : params) {
      if (!param.is_number_integer() && !param.is_string()) {
        return absl::InvalidArgumentError("a parameter of param_groups is neither a name nor an id");
      }
      const auto unit = units_.find(KeyOf(param));
      if (unit != units_.end()) {
        for (const FlatUnit::Part& part : unit->second.parts) append(part.fqn);
        continue;
      }
      FSDP_ASSIGN_OR_RETURN(const std::string fqn, NameOf(KeyOf(param)));
      append(fqn);
    }
    absl::StrAppend(&text, separator == "[" ? "[]" : "]");
    return absl::OkStatus();
  }

  const TorchLeafTypes& tensors_;
  const StateDict& model_;
  const TorchStateOptions& options_;
  const TorchOptimizerSink& sink_;
  ParameterNames names_;                   // by id; empty if parameters are identified by name
  std::map<std::string, FlatUnit> units_;  // by id or name, for flat parameters
};

}  // namespace

bool IsTorchOptimizer(const TorchNode& node) {
  if (IsFlattened(node)) return true;
  TorchNode storage;
  const TorchNode& expanded = Expanded(node, storage);
  if (!expanded.is_branch() || expanded.Find("param_groups") == nullptr) return false;
  return expanded.Find("state") != nullptr || expanded.members().size() == 1;
}

absl::StatusOr<std::string> ReadTorchOptimizer(TorchNode node, const TorchLeafTypes& tensors, const StateDict& model,
                                               const TorchStateOptions& options, const TorchOptimizerSink& sink) {
  Expand(node);
  if (IsFlattened(node)) {
    FSDP_ASSIGN_OR_RETURN(node, Unflattened(std::move(node), tensors, options.read));
  }
  return OptimizerReader(tensors, model, options, sink).Read(std::move(node));
}

const TorchNode& Expanded(const TorchNode& node, TorchNode& storage) {
  if (node.kind() != Kind::kValue || !node.value().is_object()) return node;
  // Only a dict with a tag is copied: the state of an optimizer can be large.
  const bool is_plain = !node.value().contains(kPythonTag);
  const std::optional<PythonJson> members = is_plain ? std::nullopt : MembersOf(node.value());
  if (!is_plain && !members) return node;
  storage = TorchNode();
  for (const auto& [name, value] : (is_plain ? node.value() : *members).items()) {
    storage.Add(name, TorchNode::Value(value));
  }
  return storage;
}

void Expand(TorchNode& node) {
  TorchNode storage;
  if (&Expanded(node, storage) == &storage) node = std::move(storage);
}

}  // namespace fsdp
