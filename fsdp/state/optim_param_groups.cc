// SPDX-License-Identifier: Apache-2.0
//
// All settings of all groups are read and checked before the first one is set, so an error changes nothing. A strict
// load matches groups by index and compares their parameters, since a learning rate for other parameters would go
// unnoticed.
#include "fsdp/fsdp/state/optim_param_groups.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/param_group_values.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kOptimizer[] = "optimizer";

// The name of the optimizer whose group it is; empty without one.
std::string OptimizerOf(const Json& group) {
  const auto name = group.find(kOptimizer);
  if (name == group.end()) return "";
  return name->is_string() ? name->get<std::string>() : name->dump();
}

// The parameters of a group; nullopt if it has no list of them.
std::optional<std::vector<std::string>> ParamsOf(const Json& group) {
  const auto params = group.find("params");
  if (params == group.end() || !params->is_array()) return std::nullopt;
  std::vector<std::string> names;
  for (const Json& param : *params) names.push_back(param.is_string() ? param.get<std::string>() : param.dump());
  return names;
}

std::set<std::string> ParamsOf(const Optimizer& optimizer) {
  std::set<std::string> names;
  for (const ShardedParameter* parameter : optimizer.parameters()) names.insert(parameter->fqn);
  return names;
}

Json GroupsOf(const Optimizer& optimizer, const std::string& optimizer_name) {
  Json groups = Json::array();
  for (const ParamGroupState& group : optimizer.ParamGroups()) {
    Json entry = Json::object();
    entry["params"] = group.params;
    for (const auto& [name, value] : group.values) AddGroupValue(name, value, entry);
    if (!optimizer_name.empty()) entry[kOptimizer] = optimizer_name;
    groups.push_back(std::move(entry));
  }
  return groups;
}

// The parameters of each optimizer in `groups`, by its name.
std::map<std::string, std::set<std::string>> ParamsByOptimizer(const Json& groups) {
  std::map<std::string, std::set<std::string>> params;
  for (const Json& group : groups) {
    std::set<std::string>& of_one = params[OptimizerOf(group)];
    for (std::string& name : ParamsOf(group).value_or(std::vector<std::string>())) of_one.insert(std::move(name));
  }
  return params;
}

// The name under which `saved` has parameters of `mine` and no others; nullopt if it has no parameter of `mine`.
absl::StatusOr<std::optional<std::string>> FormerName(const std::map<std::string, std::set<std::string>>& saved,
                                                      const std::set<std::string>& mine) {
  std::optional<std::string> former;
  for (const auto& [name, params] : saved) {
    std::vector<std::string> shared, other;
    for (const std::string& param : params) (mine.count(param) != 0 ? shared : other).push_back(param);
    if (shared.empty()) continue;
    if (other.empty() && !former) {
      former = name;
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("param_groups: parameter \"", shared[0], "\" is already in the state dict as another optimizer's",
                     name.empty() ? "" : absl::StrCat(" (\"", name, "\")"),
                     ": expected optimizers of different parameters; give this one a state dict of its own"));
  }
  return former;
}

// A name that `saved` does not have.
std::string NewName(const std::map<std::string, std::set<std::string>>& saved) {
  if (saved.count("") == 0) return "";
  size_t number = 1;
  while (saved.count(absl::StrCat(number)) != 0) ++number;
  return absl::StrCat(number);
}

absl::Status SameParameters(size_t index, const Json& saved, const ParamGroupState& mine) {
  const std::optional<std::vector<std::string>> params = ParamsOf(saved);
  if (!params) {
    return absl::InvalidArgumentError(absl::StrCat("param_groups: group ", index, " has no array \"params\""));
  }
  // Names are compared as sets: their order in a group does not matter.
  std::set<std::string> missing(mine.params.begin(), mine.params.end());
  for (const std::string& name : *params) {
    if (missing.erase(name) != 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("param_groups: group ", index, " of the state dict has \"", name,
                                                   "\", which group ", index, " of the optimizer has not"));
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("param_groups: group ", index, " of the state dict lacks \"",
                                                 absl::StrJoin(missing, "\", \""), "\" of the optimizer's group"));
}

absl::StatusOr<double> NumberOf(size_t index, const std::string& name, const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number()) return value.get<double>();
  return absl::InvalidArgumentError(
      absl::StrCat("param_groups: \"", name, "\" of group ", index, " is ", value.dump(), ", not a number"));
}

// The value of `name` in `sources`, which must agree; null if they do not mention it.
absl::StatusOr<Json> CommonValue(size_t index, const std::string& name, const std::vector<const Json*>& sources) {
  Json common;
  for (const Json* source : sources) {
    Json value = GroupValue(*source, name);
    // Texts are equal of values that are no numbers, too.
    if (value.is_null() || value == common || (!common.is_null() && value.dump() == common.dump())) continue;
    if (!common.is_null()) {
      return absl::InvalidArgumentError(
          absl::StrCat("param_groups: \"", name, "\" is ", common.dump(), " and ", value.dump(),
                       " in the groups of the state dict that have parameters of the optimizer's group ", index,
                       ": expected one value; set it and load a state dict without param_groups"));
    }
    common = std::move(value);
  }
  return common;
}

}  // namespace

// A state dict may hold several optimizers: their groups are in one list, and the member "optimizer" says whose each
// is. Adding one again replaces its groups where they are.
absl::StatusOr<std::string> WithParamGroups(const std::string* before, const Optimizer& optimizer) {
  const Json saved = before == nullptr ? Json::array() : Json::parse(*before, nullptr, /*allow_exceptions=*/false);
  if (!saved.is_array()) {
    return absl::InvalidArgumentError("param_groups of the state dict are no JSON array, so no optimizer can be added");
  }
  const auto params = ParamsByOptimizer(saved);
  FSDP_ASSIGN_OR_RETURN(const std::optional<std::string> former, FormerName(params, ParamsOf(optimizer)));
  std::string name = optimizer.name();
  if (name.empty()) name = former ? *former : NewName(params);
  if (former != name && params.count(name) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("param_groups: the state dict has another optimizer \"", name,
                                                   "\": expected a name of its own for each (set_name)"));
  }
  Json groups = Json::array();
  Json added = GroupsOf(optimizer, name);
  const auto add = [&] {
    for (Json& group : added) groups.push_back(std::move(group));
    added = Json::array();
  };
  for (const Json& group : saved) {
    if (former == OptimizerOf(group)) {
      add();
    } else {
      groups.push_back(group);
    }
  }
  add();
  return groups.dump();
}

// Which groups are meant for this optimizer: the groups with its name, else of the only optimizer that has its
// parameters.
SavedParamGroups::SavedParamGroups(const std::string& text, const Optimizer& optimizer) {
  const Json saved = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  is_array_ = saved.is_array();
  if (!is_array_) return;
  const std::set<std::string> mine = ParamsOf(optimizer);
  const auto by_optimizer = ParamsByOptimizer(saved);
  std::set<std::string> names;  // of optimizers that have parameters of this one
  for (const auto& [name, params] : by_optimizer) {
    if (std::any_of(params.begin(), params.end(), [&](const auto& p) { return mine.count(p) != 0; }))
      names.insert(name);
  }
  if (!optimizer.name().empty() && by_optimizer.count(optimizer.name()) != 0) names = {optimizer.name()};
  for (const Json& group : saved) {
    if (names.size() != 1 || OptimizerOf(group) == *names.begin()) {
      groups_.push_back(group);
      continue;
    }
    for (std::string& name : ParamsOf(group).value_or(std::vector<std::string>())) {
      if (mine.count(name) == 0) others_.insert(std::move(name));
    }
  }
}

absl::StatusOr<SavedParamGroups::Sources> SavedParamGroups::MatchByIndex(
    const std::vector<ParamGroupState>& mine) const {
  if (groups_.size() != mine.size()) {
    return absl::InvalidArgumentError(absl::StrCat("param_groups: ", groups_.size(), " groups in the state dict, ",
                                                   mine.size(), " groups in the optimizer"));
  }
  Sources sources;
  for (size_t g = 0; g < mine.size(); ++g) {
    FSDP_RETURN_IF_ERROR(SameParameters(g, groups_[g], mine[g]));
    sources.push_back({&groups_[g]});
  }
  return sources;
}

// For loads that are not strict: groups may have been divided or joined since.
SavedParamGroups::Sources SavedParamGroups::MatchByParameters(const std::vector<ParamGroupState>& mine) const {
  std::map<std::string, const Json*> saved;
  for (const Json& group : groups_) {
    for (std::string& name : ParamsOf(group).value_or(std::vector<std::string>())) {
      saved.emplace(std::move(name), &group);
    }
  }
  Sources sources;
  for (const ParamGroupState& group : mine) {
    std::set<const Json*> found;
    for (const std::string& name : group.params) {
      if (const auto place = saved.find(name); place != saved.end()) found.insert(place->second);
    }
    sources.emplace_back(found.begin(), found.end());
  }
  return sources;
}

absl::Status SavedParamGroups::Load(bool strict, Optimizer& optimizer) const {
  struct Setting {
    size_t group;
    std::string name;
    double value;
  };
  const std::vector<ParamGroupState> mine = optimizer.ParamGroups();
  if (!is_array_) {
    return absl::InvalidArgumentError(
        absl::StrCat("param_groups: no JSON array in the state dict, ", mine.size(), " groups in the optimizer"));
  }
  absl::StatusOr<Sources> sources = MatchByIndex(mine);
  if (!sources.ok() && strict) return sources.status();
  if (!sources.ok()) sources = MatchByParameters(mine);
  // Three passes: parse everything, check everything, then set, so that an error changes nothing.
  std::vector<Setting> settings;
  for (size_t g = 0; g < mine.size(); ++g) {
    for (const auto* values : {&mine[g].values, &mine[g].implied}) {
      for (const auto& [name, before] : *values) {
        FSDP_ASSIGN_OR_RETURN(const Json value, CommonValue(g, name, (*sources)[g]));
        if (value.is_null()) continue;
        FSDP_ASSIGN_OR_RETURN(const double number, NumberOf(g, name, value));
        settings.push_back({g, name, number});
      }
    }
  }
  for (const Setting& s : settings) {
    FSDP_RETURN_IF_ERROR(Annotate(optimizer.CheckHyperparameter(s.group, s.name, s.value), "param_groups"));
  }
  for (const Setting& s : settings) FSDP_RETURN_IF_ERROR(optimizer.SetGroupHyperparameter(s.group, s.name, s.value));
  return absl::OkStatus();
}

}  // namespace fsdp
