// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/named_groups.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"

namespace fsdp {

// DeepSpeed's optimizer has one flat parameter for each unit, so its groups list numbers of units; the result lists the
// names of the parameters in them, as get_optimizer_state_dict does.
absl::StatusOr<TorchNode> GroupsByName(const TorchNode& groups, const std::vector<NamedShapes>& units) {
  std::vector<bool> is_seen(units.size());
  TorchNode named;
  named.is_list = true;
  const auto add = [&](TorchNode group) -> absl::Status {
    Expand(group);
    TorchNode* const params = group.Find("params");
    if (params == nullptr) return absl::DataLossError("a group of the optimizer has no \"params\"");
    FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, CountsOf(params->value(), "params"));
    PythonJson names = PythonJson::array();
    for (const int64_t id : ids) {
      if (id >= static_cast<int64_t>(units.size()) || is_seen[id]) {
        return absl::DataLossError(absl::StrCat("the optimizer's groups have the parameter ", id, ", but there are ",
                                                units.size(), ", each in one group"));
      }
      is_seen[id] = true;
      for (const auto& [name, shape] : units[id]) names.push_back(name);
    }
    *params = TorchNode::Value(std::move(names));
    named.Add(absl::StrCat(named.members().size()), std::move(group));
    return absl::OkStatus();
  };
  if (groups.is_branch()) {
    for (const auto& [i, group] : groups.members()) FSDP_RETURN_IF_ERROR(add(group));
  } else {
    const std::optional<std::vector<PythonJson>> items = ItemsOf(groups.value());
    if (!items) return absl::DataLossError("the optimizer's param_groups are not a list");
    for (const PythonJson& item : *items) FSDP_RETURN_IF_ERROR(add(TorchNode::Value(item)));
  }
  return named;
}

}  // namespace fsdp
