// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/torch/parameter_ids.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/quote.h"
#include "base/status_macros.h"

namespace fsdp {
namespace {

using Names = std::map<std::string, std::string>;

// Buffers that torch's and Hugging Face's modules keep in a state dict and that are floating-point as parameters are.
constexpr std::array kBufferNames = {"running_mean", "running_var", "inv_freq", "masked_bias"};

bool IsBuffer(const std::string& fqn, DType dtype) {
  if (!IsFloatingPoint(dtype)) return true;
  for (const char* name : kBufferNames) {
    if (fqn == name || absl::EndsWith(fqn, absl::StrCat(".", name))) return true;
  }
  return false;
}

absl::Status Unknown(const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the optimizer state goes by parameter id, and ", why,
                   "; save it by name, with torch.distributed.checkpoint.state_dict.get_optimizer_state_dict"));
}

// The ids of each group, in order; empty when parameters go by name.
absl::StatusOr<std::vector<std::vector<std::string>>> IdsOf(const PythonJson& groups) {
  std::vector<std::vector<std::string>> ids;
  for (const PythonJson& group : groups) {
    std::vector<std::string>& of_group = ids.emplace_back();
    for (const PythonJson& param : group["params"]) {
      if (param.is_string()) return std::vector<std::vector<std::string>>();
      if (!param.is_number_integer())
        return absl::InvalidArgumentError("a parameter of param_groups is neither a name nor an id");
      of_group.push_back(absl::StrCat(param.get<int64_t>()));
    }
  }
  return ids;
}

// From param_groups[i]["param_names"]; empty where a group has none.
absl::StatusOr<Names> SavedNames(const PythonJson& groups) {
  Names names;
  for (const PythonJson& group : groups) {
    if (!group.contains("param_names") || !group["param_names"].is_array()) return Names();
    if (group["param_names"].size() != group["params"].size()) {
      return absl::DataLossError("the optimizer's param_names and params differ in length");
    }
    for (size_t i = 0; i < group["params"].size(); ++i) {
      const PythonJson& name = group["param_names"][i];
      if (!name.is_string()) return absl::DataLossError("the optimizer's param_names are no strings");
      names[absl::StrCat(group["params"][i].get<int64_t>())] = name.get<std::string>();
    }
  }
  return names;
}

class Merge {
 public:
  Merge(const std::vector<std::vector<std::string>>& ids, const std::map<std::string, Shape>& shapes)
      : ids_(ids), shapes_(shapes), next_(ids.size(), 0) {}

  // Each parameter is the next of one group.
  absl::StatusOr<Names> Run(const std::vector<FlatLayout::Parameter>& parameters) {
    Names names;
    for (const FlatLayout::Parameter& parameter : parameters) {
      size_t found = ids_.size();
      for (size_t group = 0; group < ids_.size(); ++group) {
        if (!IsNext(group, parameter.shape)) continue;
        if (found != ids_.size()) {
          return Unknown(absl::StrCat("its groups may be merged in more than one way at ", Quote(parameter.fqn)));
        }
        found = group;
      }
      if (found == ids_.size()) return Contradiction(parameter);
      names[ids_[found][next_[found]++]] = parameter.fqn;
    }
    return names;
  }

 private:
  bool IsNext(size_t group, const Shape& shape) const {
    if (next_[group] == ids_[group].size()) return false;
    const auto at = shapes_.find(ids_[group][next_[group]]);
    // State of one element, or none at all, says nothing of the parameter.
    return at == shapes_.end() || at->second == shape || at->second.rank() == 0;
  }

  absl::Status Contradiction(const FlatLayout::Parameter& parameter) const {
    for (size_t group = 0; group < ids_.size(); ++group) {
      if (next_[group] == ids_[group].size()) continue;
      const std::string& id = ids_[group][next_[group]];
      const auto at = shapes_.find(id);
      const std::string shape = at == shapes_.end() ? "" : at->second.ToString();
      return Unknown(absl::StrCat("state of shape ", shape, " of id ", id, " is not that of ", Quote(parameter.fqn),
                                  " of shape ", parameter.shape.ToString(),
                                  ": the order of the groups is another, or this is FSDP1's flat form"));
    }
    return Unknown(absl::StrCat("no id is left for ", Quote(parameter.fqn)));
  }

  const std::vector<std::vector<std::string>>& ids_;
  const std::map<std::string, Shape>& shapes_;
  std::vector<size_t> next_;  // of each group
};

}  // namespace

std::vector<FlatLayout::Parameter> ParametersOf(const StateDict& model) {
  std::vector<FlatLayout::Parameter> parameters;
  for (const auto& [key, value] : model.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (key.section != StateKey::Section::kModel || tensor == nullptr || IsBuffer(key.fqn, tensor->dtype)) continue;
    parameters.push_back({key.fqn, tensor->shape});
  }
  return parameters;
}

absl::StatusOr<Names> NamesOfParameterIds(const PythonJson& groups, const std::map<std::string, Shape>& shapes,
                                          const StateDict& model) {
  ASSIGN_OR_RETURN(const std::vector<std::vector<std::string>> ids, IdsOf(groups));
  size_t count = 0;
  for (const auto& group : ids) count += group.size();
  if (count == 0) return Names();
  ASSIGN_OR_RETURN(Names names, SavedNames(groups));
  if (!names.empty()) return names;
  const std::vector<FlatLayout::Parameter> parameters = ParametersOf(model);
  if (parameters.empty()) return Unknown("the model that gives ids their order is not in the same file");
  if (parameters.size() != count) {
    return Unknown(absl::StrCat("there are ", count, " of them, but ", parameters.size(), " parameters in the model"));
  }
  return Merge(ids, shapes).Run(parameters);
}

}  // namespace fsdp
