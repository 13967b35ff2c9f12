// SPDX-License-Identifier: Apache-2.0
//
// MemoryPlan: every byte that FSDP itself will hold on a rank's device, known before any of it is allocated: a pure
// function of the units and of how many of them the schedule keeps unsharded. The runtime allocates by this plan, so
// the prediction is the measurement. It does not count activations and optimizer state, which FSDP does not allocate.
#ifndef FSDP_FSDP_UNITS_MEMORY_PLAN_H_
#define FSDP_FSDP_UNITS_MEMORY_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/fsdp/schedule/schedule.h"

namespace fsdp {

class UnitStore;

// How many slots the units other than the root share: as many as the schedule needs at one time (MaxUnsharded). Two let
// one unit's collective overlap the compute of another.
struct SlotCounts {
  int unsharded = 2;
  int gradients = 2;

  // The slots of a step in this order. Gradients: one more than the units that are in backward at the same time, so
  // that a reduction overlaps the next unit's backward. Unsharded parameters: the most that two micro-steps hold,
  // because the second begins with the units that the first left unsharded; without limit_all_gathers, or if a unit is
  // not sharded and so may take a slot at any time, one for each unit.
  static SlotCounts Of(const std::vector<UnitVisit>& order, const UnitStore& units, const ScheduleOptions& options,
                       bool limit_all_gathers);
};

struct MemoryPlan {
  // In bytes, as all fields but `slots`. Held between steps: this rank's shards of parameters; of gradients, for units
  // with a trainable parameter; and the parameters in the compute dtype if the optimizer casts.
  int64_t shards = 0;

  // The same for offloaded units, in host memory that is pinned, and in host memory that is not. DeviceBytes does not
  // count them.
  int64_t pinned_shards = 0;
  int64_t pageable_shards = 0;

  // The root's own buffers, and the size of each slot that the other units share.
  int64_t root_unsharded = 0;
  int64_t root_gradients = 0;
  int64_t unsharded_slot = 0;
  int64_t gradient_slot = 0;
  SlotCounts slots;

  // Buffers that collectives read or write instead of parameters and gradients: for layouts that are not in place
  // (ShardLayout::in_place), and, in the second, for gradients that are reduced in another dtype.
  int64_t gather_staging = 0;
  int64_t reduce_staging = 0;
  int reduce_inputs = 1;  // buffers of reduce_staging bytes (UnitControls::reduce_scatter_max_input_buffers)

  // Offloaded shards on their way to be cast, and gradients on their way to offloaded shards.
  int64_t upload_staging = 0;
  int64_t download_staging = 0;

  // Shards that units keep for backward if they reshard to a smaller group after forward, summed over those units.
  int64_t post_forward_shards = 0;

  // Unsharded parameters of units that keep their storage (UnitControls::keep_unsharded_storage), which take no slots.
  int64_t kept_unsharded = 0;

  // Gradients of dtype groups (Unit::dtype_groups), which take no slots.
  int64_t group_gradients = 0;

  // Gradients that stay unsharded between backwards without synchronisation; allocated by the first such backward.
  int64_t accumulated = 0;

  // The plan for units that share so many slots. Counts are 0 in the plan if no unit needs such a slot. Pure; linear in
  // the number of units.
  static MemoryPlan Of(const UnitStore& units, const SlotCounts& slots);

  // All bytes on the device; with `accumulates`, including gradients of backwards without synchronisation. With NCCL
  // slots are pieces of arenas, whose alignment adds up to 255 bytes a slot (slot_memory.h).
  int64_t DeviceBytes(bool accumulates) const;

  // A line for each purpose that has bytes, for people.
  std::string ToString(bool accumulates) const;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_MEMORY_PLAN_H_
