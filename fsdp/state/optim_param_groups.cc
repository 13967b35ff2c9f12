// SPDX-License-Identifier: Apache-2.0
//
// All settings of all groups are read and checked before the first one is set, so an error changes nothing. Groups are
// matched by position and must have the same parameters, since a learning rate for other parameters would go unnoticed.
// PyTorch's list "betas" is beta1 and beta2 here.
#include "fsdp/fsdp/state/optim_param_groups.h"

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

// PyTorch's "betas" is our beta1 and beta2; null when `group` does not mention the value.
Json ValueOf(const Json& group, const std::string& name) {
  if (name == "beta1" || name == "beta2") {
    const auto betas = group.find("betas");
    if (betas == group.end() || !betas->is_array() || betas->size() != 2) return Json();
    return (*betas)[name == "beta1" ? 0 : 1];
  }
  const auto value = group.find(name);
  return value == group.end() ? Json() : *value;
}

absl::Status SameParameters(size_t index, const Json& saved, const ParamGroupState& mine) {
  const auto params = saved.find("params");
  if (params == saved.end() || !params->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("param_groups: group ", index, " has no array \"params\""));
  }
  // Names are compared as sets: their order in a group does not matter.
  std::set<std::string> missing(mine.params.begin(), mine.params.end());
  for (const Json& param : *params) {
    const std::string name = param.is_string() ? param.get<std::string>() : param.dump();
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

}  // namespace

std::string ParamGroupsJson(const Optimizer& optimizer) {
  Json groups = Json::array();
  for (const ParamGroupState& group : optimizer.ParamGroups()) {
    Json entry = Json::object();
    entry["params"] = group.params;
    for (const auto& [name, value] : group.values) {
      // `values` has beta1 before beta2, so the pair is in PyTorch's order.
      if (name == "beta1" || name == "beta2") {
        entry["betas"].push_back(value);
      } else {
        entry[name] = value;
      }
    }
    groups.push_back(std::move(entry));
  }
  return groups.dump();
}

absl::Status LoadParamGroups(const std::string& text, Optimizer& optimizer) {
  struct Setting {
    size_t group;
    std::string name;
    double value;
  };
  const Json saved = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::vector<ParamGroupState> mine = optimizer.ParamGroups();
  if (!saved.is_array() || saved.size() != mine.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("param_groups: ", saved.is_array() ? absl::StrCat(saved.size(), " groups") : "no JSON array",
                     " in the state dict, ", mine.size(), " groups in the optimizer"));
  }
  // Three passes: parse everything, check everything, then set, so that an error changes nothing.
  std::vector<Setting> settings;
  for (size_t g = 0; g < mine.size(); ++g) {
    FSDP_RETURN_IF_ERROR(SameParameters(g, saved[g], mine[g]));
    for (const auto& [name, before] : mine[g].values) {
      const Json value = ValueOf(saved[g], name);
      if (value.is_null()) continue;
      FSDP_ASSIGN_OR_RETURN(const double number, NumberOf(g, name, value));
      settings.push_back({g, name, number});
    }
  }
  for (const Setting& s : settings) {
    FSDP_RETURN_IF_ERROR(Annotate(optimizer.CheckHyperparameter(s.group, s.name, s.value), "param_groups"));
  }
  for (const Setting& s : settings) FSDP_RETURN_IF_ERROR(optimizer.SetGroupHyperparameter(s.group, s.name, s.value));
  return absl::OkStatus();
}

}  // namespace fsdp
