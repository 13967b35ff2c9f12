// SPDX-License-Identifier: Apache-2.0
//
// What the optimizers of this package do alike with their groups, each of which has parameters and options.
#ifndef FSDP_OPTIM_PARAM_GROUPS_H_
#define FSDP_OPTIM_PARAM_GROUPS_H_

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/sharded_parameter.h"

namespace fsdp {

// The parameters, by group.
template <typename Group>
std::vector<std::vector<ShardedParameter*>> ParametersOf(const std::vector<Group>& groups) {
  std::vector<std::vector<ShardedParameter*>> parameters;
  for (const Group& group : groups) parameters.push_back(group.parameters);
  return parameters;
}

// Validate(options), with the names of the optimizer ("AdamW") and the group in front of its error.
template <typename Options>
absl::Status ValidateGroup(const char* optimizer, size_t group, const Options& options) {
  return Annotate(Validate(options), absl::StrCat(optimizer, ", param group ", group));
}

// The first error of ValidateGroup.
template <typename Group>
absl::Status ValidateGroups(const char* optimizer, const std::vector<Group>& groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    FSDP_RETURN_IF_ERROR(ValidateGroup(optimizer, g, groups[g].options));
  }
  return absl::OkStatus();
}

// A hyperparameter that is a number, by PyTorch's name.
template <typename Options>
using NumberField = std::pair<std::string_view, double Options::*>;

// The number in `options` whose name is `name`; null if `fields` has no such name.
template <typename Options, size_t n>
double* FieldOf(const NumberField<Options> (&fields)[n], Options& options, std::string_view name) {
  for (const auto& [field, member] : fields) {
    if (field == name) return &(options.*member);
  }
  return nullptr;
}

}  // namespace fsdp

#endif  // FSDP_OPTIM_PARAM_GROUPS_H_
