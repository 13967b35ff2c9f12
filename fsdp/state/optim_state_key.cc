// SPDX-License-Identifier: Apache-2.0
//
// A key is an id if it is a decimal number and no parameter has that name: a model's parameters may be called "0" and
// "1". Ids count the parameters over all groups in the optimizer's order. A state dict is rekeyed whole or not at all;
// a mix of names and ids is ambiguous, because the same parameter could occur twice.
#include "fsdp/fsdp/state/optim_state_key.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// Names and ids of an optimizer's parameters.
class ParameterKeys {
 public:
  // `state`: names of its param_groups that look like numbers are parameters of other optimizers, and no ids.
  ParameterKeys(const Optimizer& optimizer, const StateDict& state) {
    for (const ShardedParameter* parameter : optimizer.parameters()) {
      // An id is the index of a parameter in the optimizer.
      ids_[parameter->fqn] = names_.size();
      names_.push_back(parameter->fqn);
    }
    if (const std::string* groups = state.FindText(StateKey::ParamGroups())) AddNumericNames(*groups);
  }

  bool IsId(const std::string& key) const {
    int64_t id = 0;
    // A name that looks like a number is a name.
    return ids_.count(key) == 0 && numeric_names_.count(key) == 0 && absl::SimpleAtoi(key, &id) && id >= 0;
  }

  absl::StatusOr<size_t> IdOf(const std::string& key) const {
    if (const auto named = ids_.find(key); named != ids_.end()) return named->second;
    int64_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer state of \"", key, "\": the optimizer has no parameter of that name"));
    }
    if (id < 0 || id >= static_cast<int64_t>(names_.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer state of parameter id ", id, ": the optimizer has ", names_.size(), " parameters"));
    }
    return static_cast<size_t>(id);
  }

  std::string KeyOf(size_t id, OptimStateKeyType type) const {
    return type == OptimStateKeyType::kParamId ? absl::StrCat(id) : names_[id];
  }

 private:
  // Ids are numbers in param_groups, so a text is a name.
  void AddNumericNames(const std::string& groups) {
    const auto parsed = nlohmann::ordered_json::parse(groups, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_array()) return;
    for (const nlohmann::ordered_json& group : parsed) {
      const auto params = group.find("params");
      if (params == group.end()) continue;
      for (const nlohmann::ordered_json& param : *params) {
        int64_t id = 0;
        if (param.is_string() && absl::SimpleAtoi(param.get<std::string>(), &id)) numeric_names_.insert(param);
      }
    }
  }

  std::vector<std::string> names_;  // by id
  std::map<std::string, size_t> ids_;
  std::set<std::string> numeric_names_;
};

bool IsOptimState(const StateDict::Entry& entry) { return entry.first.section == StateKey::Section::kOptimState; }

// How the optimizer state of `state` is keyed; nullopt if it has no optimizer state.
absl::StatusOr<std::optional<OptimStateKeyType>> KeyTypeOf(const StateDict& state, const ParameterKeys& keys) {
  const std::string* by_id = nullptr;
  const std::string* by_name = nullptr;
  for (const StateDict::Entry& entry : state.entries()) {
    if (IsOptimState(entry)) (keys.IsId(entry.first.fqn) ? by_id : by_name) = &entry.first.fqn;
  }
  if (by_id != nullptr && by_name != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state must be keyed by parameter names or by ids throughout, but has \"", *by_name,
                     "\" and \"", *by_id, "\""));
  }
  if (by_id != nullptr) return std::optional(OptimStateKeyType::kParamId);
  if (by_name != nullptr) return std::optional(OptimStateKeyType::kParamName);
  return std::optional<OptimStateKeyType>();
}

// param_groups with every parameter under its other key.
absl::StatusOr<std::string> RekeyGroups(const std::string& text, OptimStateKeyType key_type,
                                        const ParameterKeys& keys) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!groups.is_array()) return absl::InvalidArgumentError("param_groups are not a JSON array");
  for (nlohmann::ordered_json& group : groups) {
    if (!group.is_object() || !group.contains("params") || !group["params"].is_array()) {
      return absl::InvalidArgumentError("param_groups: a group has no array \"params\"");
    }
    std::vector<size_t> ids;
    for (const nlohmann::ordered_json& param : group["params"]) {
      const std::string key = param.is_string() ? param.get<std::string>() : param.dump();
      FSDP_ASSIGN_OR_RETURN(const size_t id, keys.IdOf(key));
      ids.push_back(id);
    }
    // By id, so that a group lists the parameters in the optimizer's order; names are sorted, as they have no other
    // order.
    std::sort(ids.begin(), ids.end());
    std::vector<std::string> names;
    for (const size_t id : ids) names.push_back(keys.KeyOf(id, OptimStateKeyType::kParamName));
    std::sort(names.begin(), names.end());
    group["params"] =
        key_type == OptimStateKeyType::kParamId ? nlohmann::ordered_json(ids) : nlohmann::ordered_json(names);
  }
  return groups.dump();
}

}  // namespace

absl::StatusOr<StateDict> RekeyOptimStateDict(const StateDict& state, OptimStateKeyType key_type,
                                              const Optimizer& optimizer) {
  const ParameterKeys keys(optimizer, state);
  FSDP_ASSIGN_OR_RETURN(const std::optional<OptimStateKeyType> before, KeyTypeOf(state, keys));
  if (before == key_type) return state;
  StateDict rekeyed;
  rekeyed.type = state.type;
  rekeyed.aliases = state.aliases;
  rekeyed.units = state.units;
  std::vector<std::pair<size_t, const StateDict::Entry*>> by_id;
  for (const StateDict::Entry& entry : state.entries()) {
    if (IsOptimState(entry)) {
      FSDP_ASSIGN_OR_RETURN(const size_t id, keys.IdOf(entry.first.fqn));
      by_id.emplace_back(id, &entry);
    } else if (entry.first.section == StateKey::Section::kParamGroups) {
      FSDP_ASSIGN_OR_RETURN(std::string groups, RekeyGroups(std::get<std::string>(entry.second), key_type, keys));
      rekeyed.Set(entry.first, std::move(groups));
    } else {
      rekeyed.Set(entry.first, entry.second);
    }
  }
  // Stable: a parameter's states keep their order.
  std::stable_sort(by_id.begin(), by_id.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [id, entry] : by_id) {
    rekeyed.Set(StateKey::OptimState(keys.KeyOf(id, key_type), entry->first.state), entry->second);
  }
  return rekeyed;
}

absl::Status CheckKeyedByName(const StateDict& state, const Optimizer& optimizer) {
  const ParameterKeys keys(optimizer, state);
  FSDP_ASSIGN_OR_RETURN(const std::optional<OptimStateKeyType> type, KeyTypeOf(state, keys));
  if (type != OptimStateKeyType::kParamId) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the optimizer state is keyed by parameter ids; RekeyOptimStateDict(state, OptimStateKeyType::kParamName, "
      "optimizer) gives it names");
}

}  // namespace fsdp
