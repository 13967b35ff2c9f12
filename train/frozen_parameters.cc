// SPDX-License-Identifier: Apache-2.0
//
// Freezing sets Parameter::requires_grad before the model is sharded. Everything else follows from that flag: sharding
// gives such a parameter no gradient, the optimizer gets only the others, and state dicts have no optimizer state for
// it. A checkpoint keeps the names (FrozenKey), because a resume must distinguish missing optimizer state from lost
// state: for a parameter that was frozen it starts afresh, for any other it is an error.
#include "fsdp/train/frozen_parameters.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// "a, b, c and 7 more": the first five names.
std::string Listed(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 5;
  const size_t named = std::min(kNamed, names.size());
  const std::string list = absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(named), ", ");
  return names.size() == named ? list : absl::StrCat(list, " and ", names.size() - named, " more");
}

// The elements of `names` that are not in `others`, in their order.
std::vector<std::string> Without(const std::vector<std::string>& names, const std::vector<std::string>& others) {
  const std::set<std::string> excluded(others.begin(), others.end());
  std::vector<std::string> remaining;
  std::copy_if(names.begin(), names.end(), std::back_inserter(remaining),
               [&](const std::string& name) { return excluded.count(name) == 0; });
  return remaining;
}

}  // namespace

absl::Status FreezeParameters(const std::string& pattern, Module& module) {
  const absl::StatusOr<NameFilter> filter = NameFilter::Create({{pattern}, {}, {}});
  if (!filter.ok()) {
    return Annotate(filter.status(), "--freeze");
  }
  // A shared parameter appears under each of its names. It counts once, and is frozen if any of its names matches.
  std::set<const Parameter*> all, frozen;
  std::vector<std::string> names;
  for (const auto& [name, parameter] : module.NamedParameters()) {
    if (all.insert(parameter.get()).second) names.push_back(name);
    FSDP_ASSIGN_OR_RETURN(const bool matches, filter->Keeps(name));
    if (!matches) continue;
    parameter->requires_grad = false;
    frozen.insert(parameter.get());
  }
  if (frozen.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--freeze=", pattern, ": matches none of the parameters, ", Listed(names)));
  }
  if (frozen.size() < all.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--freeze=", pattern, ": matches all ", all.size(), " parameters, and leaves none to train"));
}

std::vector<ShardedParameter*> TrainableParameters(const std::vector<ShardedParameter*>& parameters) {
  std::vector<ShardedParameter*> trainable;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(trainable),
               [](const ShardedParameter* parameter) { return parameter->requires_grad; });
  return trainable;
}

std::vector<std::string> FrozenNames(const std::vector<ShardedParameter*>& parameters) {
  std::vector<std::string> names;
  for (const ShardedParameter* parameter : parameters) {
    if (!parameter->requires_grad) names.push_back(parameter->fqn);
  }
  return names;
}

std::string EncodeFrozen(const std::vector<std::string>& names) { return nlohmann::json(names).dump(); }

absl::StatusOr<std::vector<std::string>> DecodeFrozen(const std::string& text) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool is_names = list.is_array() && std::all_of(list.begin(), list.end(),
                                                       [](const nlohmann::json& name) { return name.is_string(); });
  if (is_names) return list.get<std::vector<std::string>>();
  return absl::DataLossError(absl::StrCat("extra \"frozen\" is ", text, ", expected a JSON array of names"));
}

StateDict WithoutOptimState(const StateDict& wanted, const std::vector<std::string>& names) {
  const std::set<std::string> left_out(names.begin(), names.end());
  StateDict left;
  // The rest of what a restore needs, apart from the entries.
  left.type = wanted.type;
  left.aliases = wanted.aliases;
  left.units = wanted.units;
  for (const auto& [key, value] : wanted.entries()) {
    if (key.section != StateKey::Section::kOptimState || left_out.count(key.fqn) == 0) left.Set(key, value);
  }
  return left;
}

std::vector<std::string> DescribeFrozenChange(const std::vector<std::string>& before,
                                              const std::vector<std::string>& now) {
  std::vector<std::string> sentences;
  if (const std::vector<std::string> thawed = Without(before, now); !thawed.empty()) {
    sentences.push_back(absl::StrCat(
        "frozen in the run that saved, and trained from here on, with new optimizer state: ", Listed(thawed)));
  }
  if (const std::vector<std::string> frozen = Without(now, before); !frozen.empty()) {
    sentences.push_back(absl::StrCat(
        "trained in the run that saved, and frozen from here on, without their optimizer state: ", Listed(frozen)));
  }
  return sentences;
}

}  // namespace fsdp
