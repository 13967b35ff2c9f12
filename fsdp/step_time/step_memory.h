// SPDX-License-Identifier: Apache-2.0
//
// StepMemory: the bytes that a rank of a planned job would hold on its device, computed only from the shapes of its
// units. FSDP's own part equals units/memory_plan.h to the byte, for units of one strategy and precision that train and
// are not offloaded, and a test compares the two; memory_plan.h plans for units that exist, with groups and shards.
#ifndef FSDP_FSDP_STEP_TIME_STEP_MEMORY_H_
#define FSDP_FSDP_STEP_TIME_STEP_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "fsdp/fsdp/options/unit_options.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/units/memory_plan.h"
#include "fsdp/fsdp/units/shard_layout.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// All that the units of a job have in common. Parameters and gradient shards are float32.
struct ShardingPlan {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  int shard_ranks = 1;  // of the group that shards; 1 shards nothing, whatever the strategy
  LayoutKind layout = LayoutKind::kFlat;
  DType param_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;
  bool forward_prefetch = false;
  bool limit_all_gathers = true;
  bool recompute = false;  // of every unit but the root: full activation checkpointing

  bool sharded() const { return shard_ranks > 1 && strategy != ShardingStrategy::kNoShard; }
};

// The layouts of units that hold `parameters`, by unit.
std::vector<ShardLayout> LayoutsOf(absl::Span<const std::vector<ShardLayout::Entry>> parameters,
                                   const ShardingPlan& plan);

// The traits of `units` units, of which unit 0 is the root and holds the others, and the order in which they run: one
// after another within the root.
ScheduleOptions ScheduleOptionsOf(int units, const ShardingPlan& plan);
std::vector<UnitVisit> VisitsOf(int units);

// As SlotCounts::Of, without units.
SlotCounts SlotsOf(int units, const ShardingPlan& plan);

// The plan of the parameters, gradients and staging of these units. `accumulated` counts only with several micro-steps.
MemoryPlan PlanMemory(const std::vector<ShardLayout>& layouts, const ShardingPlan& plan);

// Bytes on the device at the peak of a step. Estimates but for `fsdp`.
struct StepMemory {
  int64_t fsdp = 0;         // MemoryPlan::DeviceBytes
  int64_t optimizer = 0;    // AdamW's two moments, float32, of the rank's shards
  int64_t activations = 0;  // kept by forward for backward, and the largest tensor that backward needs in addition

  int64_t peak() const { return fsdp + optimizer + activations; }
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STEP_TIME_STEP_MEMORY_H_
