// SPDX-License-Identifier: Apache-2.0
//
// Converts every form into one, then reads that form:
//
//   flattened {"state.a.weight.exp_avg": ...}  --Unflattened-->  {"state": ..., "param_groups": ...}
//
// Keys of "state" are names, ids or flat parameters. FindParameters decides which: names_ maps ids to names; units_
// maps keys of flat parameters to the parameters in them; both are empty when keys are already names. Of a flat tensor
// each parameter's state is a range: no element is read.
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/key_shapes.h"
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"
#include "fsdp/checkpoint/foreign/torch/state/optimizer_form.h"
#include "fsdp/checkpoint/foreign/torch/state/parameter_ids.h"
#include "fsdp/checkpoint/foreign/torch/state/state_path.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

class OptimizerReader {
 public:
  OptimizerReader(const TorchLeafTypes& tensors, const StateDict& model, const TorchStateOptions& options,
                  const ParameterScope& scope)
      : tensors_(tensors), model_(model), options_(options), scope_(scope) {}

  absl::StatusOr<std::string> Read(TorchNode& node, const TorchOptimizerSink& sink) {
    FSDP_ASSIGN_OR_RETURN(PythonJson groups, ReadGroups(node.Find("param_groups")));
    TorchNode none;  // DCP does not store an empty dict, such as the state of SGD without momentum
    TorchNode* const stored = node.Find("state");
    TorchNode& state = stored == nullptr ? none : *stored;
    Expand(state);
    if (!state.is_branch()) return absl::InvalidArgumentError("the optimizer's \"state\" is not a dict");
    FSDP_RETURN_IF_ERROR(FindParameters(groups, state));
    sink_ = &sink;
    FSDP_RETURN_IF_ERROR(state.Consume([this](const std::string& name, TorchNode& member) {
      Expand(member);
      return AddParameter(name, member);
    }));
    return node.Find("param_groups") == nullptr ? "" : TextOf(groups);
  }

  // The model's names of the parameters. Those that go by name must be the model's.
  absl::StatusOr<std::vector<std::string>> Parameters(const TorchNode& node) {
    FSDP_ASSIGN_OR_RETURN(PythonJson groups, ReadGroups(node.Find("param_groups")));
    const TorchNode* const stored = node.Find("state");
    TorchNode storage;
    const TorchNode& state = stored == nullptr ? storage : Expanded(*stored, storage);
    FSDP_RETURN_IF_ERROR(FindParameters(groups, state));
    std::vector<std::string> fqns;
    for (const auto& [key, unit] : units_) {
      for (const FlatUnit::Part& part : unit.parts) fqns.push_back(part.fqn);
    }
    if (!units_.empty()) return fqns;
    for (const std::string& key : KeysOf(groups)) {
      FSDP_ASSIGN_OR_RETURN(fqns.emplace_back(), NameOf(key));
      if (model_.contains(StateKey::Model(fqns.back()))) continue;
      return absl::FailedPreconditionError(absl::StrCat("its parameter ", Quote(key), " is not in the model"));
    }
    return fqns;
  }

 private:
  // `node`: null without groups.
  absl::StatusOr<PythonJson> ReadGroups(const TorchNode* node) const {
    if (node == nullptr) return PythonJson::array();
    const absl::StatusOr<PythonJson> json = node->ToJson(tensors_, options_.read);
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

  // The shapes of parameters that follow from their state. Keys are views of `state`. A moment has the parameter's
  // shape, so one that is a scalar for one parameter and not for others means a parameter without dimensions.
  KeyShapes ShapesOf(const TorchNode& state) const {
    KeyShapes shapes(tensors_);
    shapes.Reserve(state.members().size());
    std::set<std::string_view> shaped;  // moments that have dimensions
    std::vector<std::pair<std::string_view, std::string_view>> scalars;
    for (const auto& [name, member] : state.members()) {
      std::optional<int> moment;
      for (const auto& [state_name, leaf] : member.members()) {
        if (leaf.kind() != Kind::kTensor || !IsMomentName(state_name)) continue;
        if (tensors_[leaf.tensor()].shape.rank() == 0) {
          scalars.emplace_back(name, state_name);
        } else {
          if (!moment) moment = leaf.tensor();
          shaped.insert(state_name);
        }
      }
      if (moment) {
        shapes.Add(name, moment);
      } else {
        AddOtherShapes(name, "", member, shapes);
      }
    }
    for (const auto& [name, state_name] : scalars) {
      if (shaped.count(state_name) != 0) shapes.Add(name, std::nullopt);
    }
    shapes.Finish();
    return shapes;
  }

  // Every tensor with dimensions in the state of parameter `name`, by its path.
  void AddOtherShapes(std::string_view name, const std::string& path, const TorchNode& node, KeyShapes& shapes) const {
    for (const auto& [key, member] : node.members()) {
      const std::string inner = JoinStatePath(path, {key, node.is_list});
      if (member.kind() == Kind::kTensor && tensors_[member.tensor()].shape.rank() > 0) {
        shapes.AddState(name, inner, member.tensor());
      }
      AddOtherShapes(name, inner, member, shapes);
    }
  }

  // Finds names_, or units_ for the state of flat parameters. The shapes of the state decide: ids are tried as
  // parameters first, and state can be flat only if nothing in it has two dimensions. If both fail, the message has
  // both reasons.
  absl::Status FindParameters(PythonJson& groups, const TorchNode& state) {
    FSDP_RETURN_IF_ERROR(CheckHasOrder(groups, state));
    KeyShapes shapes = ShapesOf(state);
    absl::StatusOr<ParameterNames> names =
        NamesOfParameterIds(groups, shapes, model_, [this](const std::string& fqn) { return IsInScope(fqn); });
    // Names need no lookup, unless they are names of flat parameters, which have to be divided.
    const bool goes_by_flat_names = names.ok() && names->empty() && HoldsFlatName(groups);
    if (names.ok() && !goes_by_flat_names) {
      names_ = *std::move(names);
      return absl::OkStatus();
    }
    if (!shapes.is_flat() || shapes.empty()) return Unidentified(names.status());
    std::map<std::string, int64_t> sizes;
    shapes.ForEach(
        [&](std::string_view name, const Shape& shape) { sizes.try_emplace(std::string(name), shape.numel()); });
    const std::vector<FlatLayout::Parameter> parameters = ParametersOf(model_);
    absl::StatusOr<std::map<std::string, FlatUnit>> units =
        UnitsOfKeys(KeysOf(groups), sizes, parameters, options_.flat);
    if (!units.ok()) {
      const std::string before = names.ok() ? "" : absl::StrCat(std::string(names.status().message()), "; and ");
      const absl::Status both = Annotate(units.status(), absl::StrCat(before, "as FSDP1's flat form"));
      // Of one rank, or all: a rank's shards by themselves have the sizes of no units, and must not look whole.
      const bool fits_no_units = absl::IsFailedPrecondition(units.status()) && options_.flat.world_size == 1;
      const bool may_be_flat = !parameters.empty() && !fits_no_units;
      if (goes_by_flat_names || options_.flat.layout != nullptr || may_be_flat) {
        return absl::InvalidArgumentError(both.message());
      }
      return Unidentified(both);
    }
    units_ = *std::move(units);
    return absl::OkStatus();
  }

  bool IsInScope(const std::string& fqn) const {
    return absl::StartsWith(fqn, scope_.prefix) &&
           std::none_of(scope_.others.begin(), scope_.others.end(),
                        [&](const std::string& other) { return absl::StartsWith(fqn, other); });
  }

  static absl::Status Unidentified(const absl::Status& status) {
    return absl::FailedPreconditionError(status.message());
  }

  // State by id without groups: nothing gives the ids an order.
  static absl::Status CheckHasOrder(const PythonJson& groups, const TorchNode& state) {
    if (!groups.empty() || state.members().empty()) return absl::OkStatus();
    const std::string& name = state.members()[0].first;
    const bool is_id = std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c); });
    return is_id ? absl::FailedPreconditionError("its state goes by parameter id, and it has no param_groups")
                 : absl::OkStatus();
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
    return InModel(*fqn);
  }

  // The model's name of the parameter that the optimizer calls `name`. State is stored once, under the name that the
  // model's tensor has; an optimizer may know it by its other name.
  std::string InModel(const std::string& name) const {
    const std::string renamed = scope_.rename ? scope_.rename(name) : name;
    std::string fqn = absl::StrCat(scope_.prefix, renamed);
    for (const std::string& candidate : {fqn, renamed, name}) {
      const auto alias = model_.aliases.find(candidate);
      if (alias != model_.aliases.end()) return alias->second;
      if (model_.contains(StateKey::Model(candidate))) return candidate;
    }
    return fqn;
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
        FSDP_RETURN_IF_ERROR(AddState(fqn, JoinStatePath(state, {name, node.is_list}), member, part));
      }
      return absl::OkStatus();
    }
    StateKey key = StateKey::OptimState(fqn, state);
    if (node.kind() == Kind::kValue) {
      return (*sink_)(std::move(key), {.value = node.value()});
    }
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
    return (*sink_)(std::move(key), std::move(value));
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
  const ParameterScope& scope_;
  const TorchOptimizerSink* sink_ = nullptr;  // while values are read
  ParameterNames names_;                      // by id; empty if parameters are identified by name
  std::map<std::string, FlatUnit> units_;     // by id or name, for flat parameters
};

}  // namespace

bool IsTorchOptimizer(const TorchNode& node) { return OptimizerMembers(node).form() != OptimizerMembers::Form::kNone; }

absl::StatusOr<TorchNode> NestedOptimizer(TorchNode node, const TorchLeafTypes& tensors,
                                          const TorchTensorReader& read) {
  Expand(node);
  const bool is_flattened = OptimizerMembers(node).form() == OptimizerMembers::Form::kFlattened;
  if (!is_flattened) return node;
  return Unflattened(std::move(node), tensors, read);
}

absl::StatusOr<std::string> ReadTorchOptimizer(TorchNode& node, const TorchLeafTypes& tensors, const StateDict& model,
                                               const TorchStateOptions& options, const ParameterScope& scope,
                                               const TorchOptimizerSink& sink) {
  return OptimizerReader(tensors, model, options, scope).Read(node, sink);
}

absl::StatusOr<std::vector<std::string>> ParametersOfOptimizer(const TorchNode& node, const TorchLeafTypes& tensors,
                                                               const StateDict& model, const TorchStateOptions& options,
                                                               const ParameterScope& scope) {
  return OptimizerReader(tensors, model, options, scope).Parameters(node);
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
