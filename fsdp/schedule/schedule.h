// SPDX-License-Identifier: Apache-2.0
//
// Schedule: the step as data: which unit is all-gathered, computed, resharded and reduced, in the order in which the
// host issues the work. Schedules are pure functions of the order in which units run; executor.h carries them out,
// --print_schedule prints them, tests compare them with PyTorch's. Full shard, backward prefetch "pre", units root > a,
// b:
//
//   unshard stream        AG root | AG a |        AG b |       AG b |  AG a |
//   compute stream                  F root  F a (rs)    F b (rs)      B b (rs)   B a (rs)   B root (rs)
//   post-backward stream                                                   RS b       RS a          RS root
//
// AG all-gather, F forward, B backward, rs reshard, RS reduce-scatter. A unit's compute waits for its own all-gather,
// its reduce-scatter for its own backward; an all-gather waits for the slot that it writes to.
#ifndef FSDP_FSDP_SCHEDULE_SCHEDULE_H_
#define FSDP_FSDP_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "fsdp/fsdp/options/options.h"

namespace fsdp {

// A piece of work that the host issues for one unit, or, as kStep, the optimizer's update of all units.
struct ScheduleEvent {
  enum class Kind : uint8_t {
    kAllGather,
    kForward,
    kReshard,
    kReshardToGroup,  // to the shards of a smaller group (FSDP2's reshard_after_forward of an int)
    kRecompute,       // forward again: of a unit that kept its input only, or of one inside such a unit
    kBackward,
    kReduceScatter,
    kAllReduce,
    kStoreGradient,  // the reduction of a unit that no other rank shares: no collective
    kStep
  };

  Kind kind = Kind::kStep;
  int unit = -1;  // -1 for kStep

  bool operator==(const ScheduleEvent& other) const { return kind == other.kind && unit == other.unit; }
};

// In the order of issue. Work of different streams overlaps; events order it, not this list.
using Schedule = std::vector<ScheduleEvent>;

// A moment of a forward pass: execution enters or leaves a unit. Units nest: the root is entered first and left last. A
// module without own parameters is visited like a unit, with an index after theirs, if it recomputes.
struct UnitVisit {
  int unit = 0;
  bool enter = true;
};

// The facts about one unit that a schedule depends on. options/unit_options.h shows their origin.
struct UnitTraits {
  bool sharded = true;                 // all-gathered, and its gradient reduce-scattered
  bool replicated = false;             // its gradient is all-reduced as well: kNoShard, the hybrid strategies
  bool trainable = true;               // off: no parameter wants a gradient, so nothing is reduced
  bool sync = true;                    // off: its gradient stays local (no_sync)
  bool all_reduce = true;              // off: a replicated unit reduce-scatters only
  bool reshard_after_forward = true;   // off for the root, and if parameters are kept for backward
  bool reshard_to_group = false;       // after forward, and not all the way
  bool reshard_after_backward = true;  // after a backward without synchronisation
  bool reshard_after_sync = true;      // after a backward with synchronisation
  bool unshard_in_backward = true;     // off: backward does not need its parameters
  bool recompute = false;              // its forward runs again before its backward
  bool recomputes_inner = true;        // and with it all units inside; off for a unit of several modules
  bool has_parameters = true;          // off for a module that is no unit: nothing to gather or to prefetch

  // Units to all-gather ahead of this one's forward and backward; default: the next in order, by the options.
  std::optional<std::vector<int>> forward_prefetch = {};
  std::optional<std::vector<int>> backward_prefetch = {};

  // The unit that this one all-gathers ahead if nothing is listed; default: the options of the pass.
  std::optional<BackwardPrefetch> backward_prefetch_order = {};
  std::optional<bool> forward_prefetch_next = {};

  bool ReshardsAfterBackward() const { return sync ? reshard_after_sync : reshard_after_backward; }

  // The traits of a unit under FSDP1 that follow from its strategy; the others keep their defaults.
  static UnitTraits Of(ShardingStrategy strategy, bool is_root);
};

// Everything that a schedule depends on except the order of the units.
struct ScheduleOptions {
  std::vector<UnitTraits> units;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;
  bool forward_prefetch = false;
};

// The forward that visits units in this order, whether a backward follows or not (an evaluation). `unsharded`, by unit:
// which units are unsharded before it.
Schedule ForwardSchedule(absl::Span<const UnitVisit> visits, const std::vector<bool>& unsharded,
                         const ScheduleOptions& options);

// The forwards that run again within a backward, of these visits: as a forward, without prefetches.
Schedule RecomputeSchedule(absl::Span<const UnitVisit> visits, const std::vector<bool>& unsharded,
                           const ScheduleOptions& options);

// The backward of the forward that made these visits. `unsharded`: as above, before the backward.
Schedule BackwardSchedule(absl::Span<const UnitVisit> visits, const std::vector<bool>& unsharded,
                          const ScheduleOptions& options);

// A whole step that begins with all units sharded: forward and backward `micro_steps` times, all but the last without
// synchronisation, then the optimizer's step.
Schedule StepSchedule(absl::Span<const UnitVisit> visits, int micro_steps, const ScheduleOptions& options);

// Which units are unsharded after `schedule`, if `unsharded` are before it. A kAllGather unshards a unit, kReshard and
// kReshardToGroup end that.
std::vector<bool> UnshardedAfter(const Schedule& schedule, std::vector<bool> unsharded);

// The most units, other than `root`, that are unsharded at one time: how many slots the schedule needs.
int MaxUnsharded(const Schedule& schedule, std::vector<bool> unsharded, int root);

// The schedule as text, a line for each event, in PyTorch's words: "all_gather transformer.h.1". `names` are the units'
// names.
std::string RenderSchedule(const Schedule& schedule, absl::Span<const std::string> names);

}  // namespace fsdp

#endif  // FSDP_FSDP_SCHEDULE_SCHEDULE_H_
