// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/unit_windows.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/symmetric_group.h"
#include "fsdp/fsdp/units/unit_runtime.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {

absl::StatusOr<UnitWindows> UnitWindows::Of(const UnitStore& units) {
  UnitWindows windows;
  const auto add = [](std::vector<std::shared_ptr<ProcessGroup>>& groups, const std::shared_ptr<ProcessGroup>& group) {
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  };
  for (const auto& unit : units.units()) {
    if (!unit->controls.symm_mem || !unit->sharded()) continue;
    if (unit->controls.all_gather != nullptr || unit->controls.reduce_scatter != nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("unit ", unit->display_name(), ": set_symm_mem_for_comm and a custom ",
                       unit->controls.all_gather != nullptr ? "AllGatherComm" : "ReduceScatterComm",
                       ", which allocates its own memory: expected one of the two"));
    }
    add(windows.gathers, unit->all_gather_group());
    add(windows.reductions, unit->reduce_scatter_group());
  }
  return windows;
}

ProcessGroup& SlotGroup(const UnitStore& units) {
  for (const auto& unit : units.units()) {
    const auto* const symmetric = dynamic_cast<const SymmetricGroup*>(unit->groups.shard.get());
    if (symmetric != nullptr && symmetric->RegistersMemory()) return *unit->groups.shard;
  }
  return units.groups().any();
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> SplitForCopyEngines(ProcessGroup& group, std::string_view option) {
  FSDP_ASSIGN_OR_RETURN(SymmetricGroup * symmetric, SymmetricGroupOf(group, option));
  absl::StatusOr<std::unique_ptr<ProcessGroup>> made = symmetric->SplitForCopyEngines();
  FSDP_RETURN_IF_ERROR(Annotate(made.status(), std::string(option)));
  return std::shared_ptr<ProcessGroup>(*std::move(made));
}

absl::Status UseWindows(const UnitStore& units, bool copy_engines) {
  absl::Status can;
  bool some_sharded = false;
  for (const auto& unit : units.units()) {
    some_sharded |= unit->sharded();
    if (unit->sharded()) can.Update(SymmetricGroupOf(*unit->groups.shard, "symm_mem_for_comm").status());
  }
  if (!some_sharded && units.groups().any().size() > 1) {
    can = absl::FailedPreconditionError(
        "symm_mem_for_comm: no unit is sharded, so nothing is all-gathered: expected another sharding_strategy");
  }
  FSDP_RETURN_IF_ERROR(units.groups().AllReduceStatus(can));
  std::map<const ProcessGroup*, std::shared_ptr<ProcessGroup>> engines;  // by shard group
  for (const auto& unit : units.units()) {
    if (!unit->sharded()) continue;
    unit->controls.symm_mem = true;
    if (!copy_engines) continue;
    std::shared_ptr<ProcessGroup>& group = engines[unit->groups.shard.get()];
    if (group == nullptr) {
      FSDP_ASSIGN_OR_RETURN(group, SplitForCopyEngines(*unit->groups.shard, "copy_engine_all_gather"));
    }
    unit->controls.all_gather_group = group;
  }
  return absl::OkStatus();
}

// Offsets in a window must be equal on all ranks, also after a pass that failed on some of them.
absl::Status UnitRuntime::FollowWindows() {
  FSDP_ASSIGN_OR_RETURN(const UnitWindows wanted, UnitWindows::Of(units_));
  if (!wanted.gathers.empty()) {
    unsharded_.Sort();
    gradients_->SortSlots();
  }
  if (memory_.HasWindowsOf(wanted.gathers) && gradients_->memory().HasWindowsOf(wanted.reductions)) {
    return absl::OkStatus();
  }
  if (IsCapturing(compute())) {
    return absl::FailedPreconditionError(
        "set_symm_mem_for_comm was called before a step that is captured: expected a step before that is not");
  }
  FSDP_RETURN_IF_ERROR(Synchronize());
  FSDP_RETURN_IF_ERROR(memory_.SetWindows(wanted.gathers));
  return gradients_->memory().SetWindows(wanted.reductions);
}

}  // namespace fsdp
