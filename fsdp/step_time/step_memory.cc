// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of units/memory_plan.cc, over shapes instead of units.
#include "fsdp/fsdp/step_time/step_memory.h"

#include <algorithm>

namespace fsdp {
namespace {

constexpr int64_t kMasterSize = 4;  // float32

// A unit that is not sharded and computes in float32 computes on its shard.
bool NeedsUnsharded(const ShardingPlan& plan) { return plan.sharded() || plan.param_dtype != DType::kFloat32; }

}  // namespace

std::vector<ShardLayout> LayoutsOf(absl::Span<const std::vector<ShardLayout::Entry>> parameters,
                                   const ShardingPlan& plan) {
  const ShardLayoutOptions options = {
      .world_size = plan.sharded() ? plan.shard_ranks : 1, .kind = plan.layout, .forward_dtype = plan.param_dtype};
  std::vector<ShardLayout> layouts;
  for (const std::vector<ShardLayout::Entry>& unit : parameters) layouts.emplace_back(unit, options);
  return layouts;
}

ScheduleOptions ScheduleOptionsOf(int units, const ShardingPlan& plan) {
  ScheduleOptions options;
  options.backward_prefetch = plan.backward_prefetch;
  options.forward_prefetch = plan.forward_prefetch;
  for (int unit = 0; unit < units; ++unit) {
    UnitTraits traits = UnitTraits::Of(plan.sharded() ? plan.strategy : ShardingStrategy::kNoShard, unit == 0);
    // Not the root, which would run the whole forward again.
    traits.recompute = plan.recompute && unit != 0;
    options.units.push_back(traits);
  }
  return options;
}

std::vector<UnitVisit> VisitsOf(int units) {
  std::vector<UnitVisit> visits = {{0, true}};
  for (int unit = 1; unit < units; ++unit) {
    visits.push_back({unit, true});
    visits.push_back({unit, false});
  }
  visits.push_back({0, false});
  return visits;
}

SlotCounts SlotsOf(int units, const ShardingPlan& plan) {
  const int others = units - 1;
  SlotCounts slots;
  // Two slots let a reduction overlap the next unit's backward; more would not be used.
  slots.gradients = std::min(2, others);
  slots.unsharded = others;
  if (plan.limit_all_gathers && plan.sharded()) {
    // Two micro-steps, because the second starts with the units that the first left unsharded.
    const Schedule step = StepSchedule(VisitsOf(units), 2, ScheduleOptionsOf(units, plan));
    slots.unsharded = MaxUnsharded(step, std::vector<bool>(units, false), 0);
  }
  return slots;
}

MemoryPlan PlanMemory(const std::vector<ShardLayout>& layouts, const ShardingPlan& plan) {
  MemoryPlan memory;
  memory.slots = SlotsOf(static_cast<int>(layouts.size()), plan);
  const int64_t compute_size = SizeOf(plan.param_dtype);
  const int64_t reduce_size = SizeOf(plan.reduce_dtype);
  for (size_t unit = 0; unit < layouts.size(); ++unit) {
    const ShardLayout& layout = layouts[unit];
    const int64_t padded = layout.padded_numel();
    // The shard and its gradient.
    memory.shards += 2 * layout.shard_numel() * kMasterSize;
    if (!layout.in_place()) memory.gather_staging = std::max(memory.gather_staging, padded * compute_size);
    if (!layout.in_place() || plan.reduce_dtype != plan.param_dtype) {
      memory.reduce_staging = std::max(memory.reduce_staging, padded * reduce_size);
    }
    int64_t& unsharded = unit == 0 ? memory.root_unsharded : memory.unsharded_slot;
    int64_t& gradients = unit == 0 ? memory.root_gradients : memory.gradient_slot;
    if (NeedsUnsharded(plan)) unsharded = std::max(unsharded, padded * compute_size);
    gradients = std::max(gradients, padded * compute_size);
    // FSDP2 accumulates in the dtype that it reduces in.
    memory.accumulated += padded * (plan.layout == LayoutKind::kDim0 ? reduce_size : compute_size);
  }
  if (memory.unsharded_slot == 0) memory.slots.unsharded = 0;
  if (memory.gradient_slot == 0) memory.slots.gradients = 0;
  return memory;
}

}  // namespace fsdp
