// SPDX-License-Identifier: Apache-2.0
//
// Schedule: the step as data. Which unit is all-gathered, computed, resharded and reduced, in the order in which the
// host issues it. Pure functions of the order in which units run; executor.h carries a schedule out, --print_schedule
// prints one, tests compare them with PyTorch's. Full shard, backward prefetch "pre", units root > a, b:
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

struct ScheduleEvent {
  enum class Kind : uint8_t {
    kAllGather,
    kForward,
    kReshard,
    kReshardToGroup,  // to the shards of a smaller group (FSDP2's reshard_after_forward of an int)
    kRecompute,       // forward again, for a unit that kept its input only
    kBackward,
    kReduceScatter,
    kAllReduce,
    kStep
  };

  Kind kind = Kind::kStep;
  int unit = -1;  // -1 for kStep

  bool operator==(const ScheduleEvent& other) const { return kind == other.kind && unit == other.unit; }
};

using Schedule = std::vector<ScheduleEvent>;

// A moment of a forward pass: execution enters or leaves a unit. Units nest: the root is entered first and left last.
struct UnitVisit {
  int unit = 0;
  bool enter = true;
};

// What a schedule needs to know of one unit.
struct UnitTraits {
  bool sharded = true;                 // all-gathered, and its gradient reduce-scattered
  bool replicated = false;             // its gradient is all-reduced as well: kNoShard, the hybrid strategies
  bool trainable = true;               // off: no parameter wants a gradient, so nothing is reduced
  bool sync = true;                    // off: its gradient stays local (no_sync)
  bool all_reduce = true;              // off: a replicated unit reduce-scatters only
  bool reshard_after_forward = true;   // off for the root, and where parameters are kept for backward
  bool reshard_to_group = false;       // after forward, and not all the way
  bool reshard_after_backward = true;  // of a backward without synchronisation
  bool reshard_after_sync = true;      // of one with it
  bool unshard_in_backward = true;     // off: backward does not need its parameters
  bool recompute = false;              // its forward runs again before its backward

  // Units to all-gather ahead of this one's forward and backward; default: the next in order, by the options.
  std::optional<std::vector<int>> forward_prefetch = {};
  std::optional<std::vector<int>> backward_prefetch = {};

  bool ReshardsAfterBackward() const { return sync ? reshard_after_sync : reshard_after_backward; }

  // How FSDP1 treats a unit.
  static UnitTraits Of(ShardingStrategy strategy, bool is_root);
};

struct ScheduleOptions {
  std::vector<UnitTraits> units;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;
  bool forward_prefetch = false;
  bool training = true;  // off: no backward follows, so every unit is resharded
};

// The forward pass that visits units in this order, given which units are unsharded already.
Schedule ForwardSchedule(absl::Span<const UnitVisit> visits, const std::vector<bool>& unsharded,
                         const ScheduleOptions& options);

// The backward pass of the forward pass that made these visits.
Schedule BackwardSchedule(absl::Span<const UnitVisit> visits, const std::vector<bool>& unsharded,
                          const ScheduleOptions& options);

// Forward and backward `micro_steps` times, all but the last without synchronisation, then the optimizer's step.
Schedule StepSchedule(absl::Span<const UnitVisit> visits, int micro_steps, const ScheduleOptions& options);

// Which units are unsharded after `schedule`, from `unsharded` before it.
std::vector<bool> UnshardedAfter(const Schedule& schedule, std::vector<bool> unsharded);

// The most units, other than `root`, that are unsharded at one time: how many slots the schedule needs.
int MaxUnsharded(const Schedule& schedule, std::vector<bool> unsharded, int root);

// "all_gather transformer.h.1", one event a line, in the words of PyTorch users; units by `names`.
std::string RenderSchedule(const Schedule& schedule, absl::Span<const std::string> names);

}  // namespace fsdp

#endif  // FSDP_FSDP_SCHEDULE_SCHEDULE_H_
