// SPDX-License-Identifier: Apache-2.0
//
// The symmetric windows of a model: which groups its memory is registered with, by the units' controls. Units take
// turns in slots, so as soon as one unit asks for windows, the memory of all is a window of that unit's groups.
#ifndef FSDP_FSDP_UNITS_UNIT_WINDOWS_H_
#define FSDP_FSDP_UNITS_UNIT_WINDOWS_H_

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/units/unit.h"

namespace fsdp {

// By what the memory is for; each group once, in the order of units.
struct UnitWindows {
  std::vector<std::shared_ptr<ProcessGroup>> gathers;
  std::vector<std::shared_ptr<ProcessGroup>> reductions;

  // kFailedPrecondition for a unit with windows and a program's own AllGatherComm or ReduceScatterComm, which has its
  // own memory; names the unit.
  static absl::StatusOr<UnitWindows> Of(const UnitStore& units);
};

// The group that slots are allocated from: the units' shard group if it registers memory, so that it registers it with
// itself; else any.
ProcessGroup& SlotGroup(const UnitStore& units);

// SymmetricGroup::SplitForCopyEngines of `group`, for all-gathers only. kFailedPrecondition, naming `option`.
// Collective; blocks.
absl::StatusOr<std::shared_ptr<ProcessGroup>> SplitForCopyEngines(ProcessGroup& group, std::string_view option);

// Sets the controls of all units that are sharded to windows, and with `copy_engines` to all-gathers by copy engines.
// kFailedPrecondition, on every rank, if a group cannot, or if several ranks shard no unit; names symm_mem_for_comm or
// copy_engine_all_gather. Collective; blocks.
absl::Status UseWindows(const UnitStore& units, bool copy_engines);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_WINDOWS_H_
