// SPDX-License-Identifier: Apache-2.0
//
// The variants hold a config of each type in the order of StateDictType, so an index is a type, which the assertion
// below guards. Make checks that all three arguments are of one type, as the constructors' overloads do at compile
// time.
#include "fsdp/fsdp/options/state_dict_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

static_assert(static_cast<size_t>(StateDictType::kFull) == 0 && static_cast<size_t>(StateDictType::kLocal) == 1 &&
              static_cast<size_t>(StateDictType::kSharded) == 2);

// The defaults of a type, by its value.
StateDictSettings DefaultsOf(StateDictType type) {
  switch (type) {
    case StateDictType::kFull:
      return FullStateDictConfig{};
    case StateDictType::kLocal:
      return LocalStateDictConfig{};
    case StateDictType::kSharded:
      break;
  }
  return ShardedStateDictConfig{};
}

absl::Status CheckType(const char* field, StateDictType type, size_t given) {
  if (static_cast<size_t>(type) == given) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected ", field, " of type ", std::string(StateDictTypeName(type)),
                                                 " but got one of type ",
                                                 std::string(StateDictTypeName(static_cast<StateDictType>(given)))));
}

}  // namespace

StateDictSettings StateDictSettings::For(const StateDictConfig& config) {
  StateDictSettings settings = DefaultsOf(static_cast<StateDictType>(config.index()));
  settings.model_ = config;
  return settings;
}

absl::StatusOr<StateDictSettings> StateDictSettings::Make(StateDictType type,
                                                          const std::optional<StateDictConfig>& model,
                                                          const std::optional<OptimStateDictConfig>& optim) {
  if (static_cast<size_t>(type) >= std::variant_size_v<StateDictConfig>) {
    return absl::InvalidArgumentError(
        absl::StrCat("state dict type is ", static_cast<int>(type), ": expected an enumerator of StateDictType"));
  }
  StateDictSettings settings = DefaultsOf(type);
  if (model) {
    FSDP_RETURN_IF_ERROR(CheckType("state_dict_config", type, model->index()));
    settings.model_ = *model;
  }
  if (optim) {
    FSDP_RETURN_IF_ERROR(CheckType("optim_state_dict_config", type, optim->index()));
    settings.optim_ = *optim;
  }
  return settings;
}

}  // namespace fsdp
