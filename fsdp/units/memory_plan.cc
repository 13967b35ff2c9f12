// SPDX-License-Identifier: Apache-2.0
//
// How each buffer gets its size, over all units:
//
//   shards             sum over units: parameters, gradients of what Unit::grad_layout has, low-precision copies
//   unsharded slots    count * the largest unit but the root, with its dtype groups: units take turns, so each slot
//                      must fit any of them
//   gradient slots     likewise, in the compute dtype, of units that are trainable
//   root's buffers     the root usually stays unsharded from forward through backward, so it would keep a slot anyway;
//                      and it is often the largest unit (embeddings), which would make every slot as large
//   staging            the largest unit that needs it: one stream uses it for one unit after another
//
// The runtime allocates exactly these (unit_runtime.cc, gradient_reduction.cc), and a test compares the sum with the
// peak that was measured.
#include "fsdp/fsdp/units/memory_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_parts.h"

namespace fsdp {
namespace {

bool NeedsUnsharded(Unit& unit) {
  const std::vector<Unit*> parts = unit.Parts();
  return std::any_of(parts.begin(), parts.end(),
                     [](const Unit* part) { return !part->computes_on_shard(part->compute_dtype); });
}

// Elements of several dtypes, or that are not in the order of the parameters, do not arrive in their slot.
int64_t GatherStaging(Unit& unit) {
  if (unit.dtype_group_of.has_value()) return 0;
  const UnitParts all(unit);
  if (all.parts.size() > 1) return unit.sharded() ? all.row_bytes * unit.groups.shard_world_size() : 0;
  return unit.layout.in_place() ? 0 : all.slot_bytes;
}

// True if the reduction reads a copy of the gradient and not the one that backward writes.
bool StagesReduction(const Unit& unit) {
  return unit.reduce_dtype != unit.compute_dtype || !unit.grad_layout.in_place();
}

void AddShards(const Unit& unit, MemoryPlan& plan) {
  int64_t nbytes = 0;
  for (const Tensor& memory : {unit.shard, unit.grad_shard, unit.low_precision_grad, unit.compute_shard}) {
    if (memory.defined()) nbytes += memory.nbytes();
  }
  int64_t& place = !unit.offloaded()                   ? plan.shards
                   : unit.settings.offload->pin_memory ? plan.pinned_shards
                                                       : plan.pageable_shards;
  place += nbytes;
}

void AddStaging(Unit& unit, MemoryPlan& plan) {
  const int64_t padded = unit.layout.padded_numel(), grad_padded = unit.grad_layout.padded_numel();
  const int64_t shard_bytes = unit.layout.shard_numel() * SizeOf(unit.dtype);
  const auto raise = [](int64_t& most, int64_t nbytes) { most = std::max(most, nbytes); };
  raise(plan.gather_staging, GatherStaging(unit));
  if (StagesReduction(unit)) raise(plan.reduce_staging, grad_padded * SizeOf(unit.reduce_dtype));
  if (unit.offloaded() && unit.compute_dtype != unit.dtype) raise(plan.upload_staging, shard_bytes);
  if (unit.offloaded() && unit.grad_shard.defined()) raise(plan.download_staging, 3 * unit.grad_shard.nbytes());
  if (unit.post_forward_group != nullptr) {
    plan.post_forward_shards += padded / unit.post_forward_group->size() * SizeOf(unit.compute_dtype);
  }
}

}  // namespace

SlotCounts SlotCounts::Of(const std::vector<UnitVisit>& order, const UnitStore& units, const ScheduleOptions& options,
                          bool limit_all_gathers) {
  const int root = units.root_unit();
  const auto has_slot = [](const auto& unit) { return !unit->dtype_group_of.has_value(); };
  const auto all_units = std::count_if(units.units().begin(), units.units().end(), has_slot);
  const int others = static_cast<int>(all_units) - (root >= 0 ? 1 : 0);
  int depth = 0, deepest = 0;
  for (const UnitVisit& visit : order) {
    if (visit.unit == root || visit.unit >= units.size()) continue;
    depth += visit.enter ? 1 : -1;
    deepest = std::max(deepest, depth);
  }
  SlotCounts counts;
  counts.gradients = std::min(deepest + 1, others);
  counts.unsharded = others;
  const bool all_gathered = std::all_of(options.units.begin(), options.units.begin() + units.size(),
                                        [](const UnitTraits& unit) { return unit.sharded; });
  if (limit_all_gathers && all_gathered) {
    const Schedule step = StepSchedule(order, 2, options);
    counts.unsharded = MaxUnsharded(step, std::vector<bool>(options.units.size(), false), root);
  }
  return counts;
}

MemoryPlan MemoryPlan::Of(const UnitStore& units, const SlotCounts& slots) {
  MemoryPlan plan;
  plan.slots = slots;
  for (int u = 0; u < units.size(); ++u) {
    Unit& unit = units.unit(u);
    const bool root = u == units.root_unit();
    AddShards(unit, plan);
    AddStaging(unit, plan);
    int64_t& unsharded = root ? plan.root_unsharded : plan.unsharded_slot;
    int64_t& gradients = root ? plan.root_gradients : plan.gradient_slot;
    plan.reduce_inputs = std::max(plan.reduce_inputs, unit.controls.reduce_scatter_max_input_buffers);
    const bool has_slot = !unit.dtype_group_of.has_value() && NeedsUnsharded(unit);
    if (has_slot) unsharded = std::max(unsharded, UnitParts(unit).slot_bytes);
    if (has_slot && !root && unit.controls.keep_unsharded_storage) plan.kept_unsharded += UnitParts(unit).slot_bytes;
    if (!unit.trainable()) continue;
    const int64_t grad_padded = unit.grad_layout.padded_numel();
    const int64_t nbytes = grad_padded * SizeOf(unit.compute_dtype);
    if (unit.dtype_group_of.has_value()) {
      plan.group_gradients += nbytes;
    } else {
      gradients = std::max(gradients, nbytes);
    }
    plan.accumulated +=
        grad_padded * SizeOf(unit.accumulates_in_reduce_dtype() ? unit.reduce_dtype : unit.compute_dtype);
  }
  if (plan.unsharded_slot == 0) plan.slots.unsharded = 0;
  if (plan.gradient_slot == 0) plan.slots.gradients = 0;
  return plan;
}

int64_t MemoryPlan::DeviceBytes(bool accumulates) const {
  return shards + root_unsharded + root_gradients + slots.unsharded * unsharded_slot + slots.gradients * gradient_slot +
         kept_unsharded + group_gradients + gather_staging + reduce_inputs * reduce_staging + upload_staging +
         download_staging + post_forward_shards + (accumulates ? accumulated : 0);
}

std::string MemoryPlan::ToString(bool accumulates) const {
  std::string text;
  const auto add = [&text](const char* purpose, int64_t nbytes) {
    if (nbytes > 0) absl::StrAppend(&text, purpose, ": ", nbytes, " bytes\n");
  };
  add("parameter and gradient shards", shards);
  add("parameter and gradient shards, pinned host memory", pinned_shards);
  add("parameter and gradient shards, host memory", pageable_shards);
  add("unsharded parameters of the root", root_unsharded);
  add("gradients of the root", root_gradients);
  add(absl::StrCat("unsharded parameters, ", slots.unsharded, " slots").c_str(), slots.unsharded * unsharded_slot);
  add(absl::StrCat("gradients, ", slots.gradients, " slots").c_str(), slots.gradients * gradient_slot);
  add("unsharded parameters that keep their storage", kept_unsharded);
  add("gradients of dtype groups", group_gradients);
  add("staging of collectives", gather_staging + reduce_inputs * reduce_staging);
  add("staging of offload", upload_staging + download_staging);
  add("shards after forward", post_forward_shards);
  if (accumulates) add("accumulated gradients", accumulated);
  add("together, on the device", DeviceBytes(accumulates));
  return text;
}

}  // namespace fsdp
