// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/model_layout.h"

#include <optional>
#include <set>
#include <utility>

#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<FlatLayout> ModelLayout(const std::string& file, Module& model) {
  FSDP_ASSIGN_OR_RETURN(std::optional<FlatLayout> given, ReadFlatLayout(file));
  if (given.has_value()) return *std::move(given);
  FlatLayout layout;
  std::set<const Parameter*> seen;
  for (const auto& [name, parameter] : model.NamedParameters()) {
    if (seen.insert(parameter.get()).second) layout.parameters.push_back({name, parameter->shape});
  }
  return layout;
}

}  // namespace fsdp
