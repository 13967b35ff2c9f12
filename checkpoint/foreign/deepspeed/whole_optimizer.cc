// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/whole_optimizer.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_values.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

bool IsTorchs(const TorchNode& node) {
  return node.is_branch() && node.Find("state") != nullptr && node.Find("param_groups") != nullptr;
}

// The ids of each group.
absl::StatusOr<std::vector<std::vector<int64_t>>> IdsOf(const TorchNode& groups) {
  std::vector<std::vector<int64_t>> ids;
  const auto add = [&](TorchNode group) -> absl::Status {
    Expand(group);
    const TorchNode* const params = group.Find("params");
    if (params == nullptr) return absl::DataLossError("a group of the optimizer has no \"params\"");
    FSDP_ASSIGN_OR_RETURN(ids.emplace_back(), CountsOf(params->value(), "params"));
    return absl::OkStatus();
  };
  if (groups.is_branch()) {
    for (const auto& [i, group] : groups.members()) FSDP_RETURN_IF_ERROR(add(group));
    return ids;
  }
  const std::optional<std::vector<PythonJson>> items = ItemsOf(groups.value());
  if (!items) return absl::DataLossError("the optimizer's param_groups are not a list");
  for (const PythonJson& item : *items) FSDP_RETURN_IF_ERROR(add(TorchNode::Value(item)));
  return ids;
}

// Adds the tensors of `masters`, a list of each group, as the state "fp32" of their ids.
absl::Status AddMasters(const TorchNode& masters, TorchNode& optimizer) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::vector<int64_t>> ids, IdsOf(*optimizer.Find("param_groups")));
  TorchNode& state = *optimizer.Find("state");
  Expand(state);
  if (masters.members().size() != ids.size()) {
    return absl::DataLossError(absl::StrCat("its fp32_groups are ", masters.members().size(),
                                            ", but its optimizer has ", ids.size(), " groups"));
  }
  for (size_t g = 0; g < ids.size(); ++g) {
    const std::vector<TorchNode::Member>& group = masters.members()[g].second.members();
    if (group.size() != ids[g].size()) {
      return absl::DataLossError(absl::StrCat("group ", g, " of its fp32_groups has ", group.size(),
                                              " parameters, but the group of its optimizer ", ids[g].size()));
    }
    for (size_t i = 0; i < group.size(); ++i) {
      const std::string id = absl::StrCat(ids[g][i]);
      TorchNode* own = state.Find(id);
      if (own == nullptr) {
        own = state.Add(id, TorchNode());
        own->has_json_name = true;
      }
      Expand(*own);
      if (own->Add("fp32", group[i].second) == nullptr) {
        return absl::DataLossError(absl::StrCat("the optimizer has the parameter ", id, " twice"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

// ZeRO 0 stores the optimizer in the model file: torch's own state dict, or in low precision a wrapper around it with
// the float32 parameters as lists that run parallel to the ids of the groups.
absl::StatusOr<WholeOptimizer> ReadWholeOptimizer(TorchNode node) {
  WholeOptimizer whole;
  if (IsTorchs(node)) {
    whole.optimizer = std::move(node);
    return whole;
  }
  TorchNode* const optimizer = node.Find("optimizer_state_dict");
  if (optimizer != nullptr) Expand(*optimizer);
  if (optimizer == nullptr || !IsTorchs(*optimizer) || node.Find("fp32_groups_flat") != nullptr) {
    whole.left_out.emplace_back(
        "\"optimizer\" (its state is in flat tensors, without the names and shapes of the parameters in them)");
    return whole;
  }
  if (const TorchNode* const masters = node.Find("fp32_groups"); masters != nullptr && masters->is_branch()) {
    FSDP_RETURN_IF_ERROR(AddMasters(*masters, *optimizer));
    whole.note =
        "the model is in low precision, as ZeRO 0 has it: its float32 parameters are the optimizer's state \"fp32\"";
  }
  whole.optimizer = std::move(*optimizer);
  FSDP_RETURN_IF_ERROR(node.Consume([&](const std::string& name, TorchNode& member) {
    if (name != "optimizer_state_dict" && name != "fp32_groups") whole.others.Add(name, std::move(member));
    return absl::OkStatus();
  }));
  return whole;
}

}  // namespace fsdp
