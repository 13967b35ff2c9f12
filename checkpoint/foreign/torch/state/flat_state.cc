// SPDX-License-Identifier: Apache-2.0
//
// Finds the units in this order: keys that are the parameters of the model one by one (use_orig_params) need no units;
// keys that are names of flat parameters contain their unit; a layout may list the units; otherwise the sizes are
// searched. Whatever the origin of the units, the parts must add up to the size of the flat parameter, including
// padding (PlacePacked), or the layout is wrong and reading fails.
#include "fsdp/checkpoint/foreign/torch/state/flat_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/unit_search.h"

namespace fsdp {
namespace {

using Units = std::map<std::string, FlatUnit>;

// use_orig_params: keys are the parameters in the model's order, and each one's state is flat with the parameter's own
// elements. An equal number of keys and parameters is not enough: as many units with one parameter each would have
// padding.
bool IsByParameter(const std::vector<std::string>& keys, const std::map<std::string, int64_t>& sizes,
                   const std::vector<FlatLayout::Parameter>& parameters) {
  if (keys.size() != parameters.size()) return false;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto size = sizes.find(keys[i]);
    if (size != sizes.end() && size->second != parameters[i].shape.numel()) return false;
  }
  return true;
}

absl::StatusOr<std::vector<std::string>> UnitNames(const std::vector<std::string>& keys,
                                                   const std::map<std::string, int64_t>& sizes,
                                                   const std::vector<FlatLayout::Parameter>& parameters,
                                                   const FlatStateOptions& options) {
  std::vector<std::string> names;
  if (std::all_of(keys.begin(), keys.end(), IsFlatName)) {
    for (const std::string& key : keys) names.push_back(UnitOfFlatName(key));
    return names;
  }
  if (options.layout != nullptr && !options.layout->units.empty()) {
    if (options.layout->units.size() == keys.size()) return options.layout->units;
    return absl::InvalidArgumentError(absl::StrCat("the flat layout names ", options.layout->units.size(),
                                                   " units, but the optimizer has ", keys.size(), " flat parameters"));
  }
  // Only ids. The search needs every size, so a flat parameter without state (frozen, or no step yet) makes it
  // impossible.
  std::vector<int64_t> wanted;
  for (const std::string& key : keys) {
    const auto size = sizes.find(key);
    if (size == sizes.end()) return absl::InvalidArgumentError(absl::StrCat("parameter ", Quote(key), " has no state"));
    wanted.push_back(size->second);
  }
  absl::StatusOr<std::vector<std::string>> found = FindUnits(parameters, wanted, options.world_size);
  if (found.ok()) return found;
  return absl::Status(found.status().code(), absl::StrCat(found.status().message(), "; ", kGiveFlatLayout));
}

}  // namespace

absl::StatusOr<Units> UnitsOfKeys(const std::vector<std::string>& keys, const std::map<std::string, int64_t>& sizes,
                                  const std::vector<FlatLayout::Parameter>& model, const FlatStateOptions& options) {
  const std::vector<FlatLayout::Parameter>& parameters = options.layout != nullptr ? options.layout->parameters : model;
  if (parameters.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("which parameters its flat parameters are made of is not in the file; ", kGiveFlatLayout));
  }
  Units units;
  if (IsByParameter(keys, sizes, parameters)) {
    for (size_t i = 0; i < keys.size(); ++i) {
      units[keys[i]] = {parameters[i].fqn, {{parameters[i].fqn, parameters[i].shape, 0}}};
    }
    return units;
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, UnitNames(keys, sizes, parameters, options));
  FSDP_ASSIGN_OR_RETURN(std::vector<FlatUnit> divided, DivideIntoUnits(parameters, names));
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto size = sizes.find(keys[i]);
    if (size != sizes.end()) FSDP_RETURN_IF_ERROR(PlacePacked(size->second, options.world_size, divided[i]));
    units[keys[i]] = std::move(divided[i]);
  }
  return units;
}

}  // namespace fsdp
