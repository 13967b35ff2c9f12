// SPDX-License-Identifier: Apache-2.0
//
// RenameParamGroups: renames the parameters in an optimizer's param_groups, which a checkpoint stores as JSON:
//
//   [{"lr": 0.001, "weight_decay": 0.1, "params": ["transformer.wte.weight", ...]}, ...]
#ifndef FSDP_CHECKPOINT_CONVERT_RENAME_PARAM_GROUPS_H_
#define FSDP_CHECKPOINT_CONVERT_RENAME_PARAM_GROUPS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

// Pure. Returns `json` with each name in a "params" list replaced by new_name(name), or removed if new_name returns
// nullopt; everything else is kept. kDataLoss when it is not JSON.
absl::StatusOr<std::string> RenameParamGroups(
    const std::string& json,
    const std::function<absl::StatusOr<std::optional<std::string>>(const std::string&)>& new_name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_RENAME_PARAM_GROUPS_H_
