// SPDX-License-Identifier: Apache-2.0
//
// StepTime: when each event of a schedule runs, if the times of its computations and collectives are known. It issues
// the events in the schedule's order, as units/executor.h does, to four streams with the same waits:
//
//   compute        a unit's computation waits for its all-gather, a backward also for a gradient slot
//   unshard        an all-gather waits for the slot that it writes to: first in, first out, as in units/slot_pool.h
//   post_backward  a reduce-scatter waits for its backward
//   all_reduce     an all-reduce waits for the reduce-scatter of its unit
//
// Collectives of one group do not overlap: all-gathers and reduce-scatters run one after another in the order of issue.
// Nothing begins before the host has issued it. A computation takes the same time with and without a concurrent
// collective; the caller must add any slowdown to the costs.
#ifndef FSDP_FSDP_STEP_TIME_STEP_TIME_H_
#define FSDP_FSDP_STEP_TIME_STEP_TIME_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/schedule/schedule.h"

namespace fsdp {

// Seconds of one unit's events. A unit that holds others, as the root does, also computes after them: the head and the
// loss in forward, the embedding in backward.
struct UnitCost {
  double forward = 0;
  double forward_after_inner = 0;
  double backward = 0;
  double backward_after_inner = 0;
  double recompute = 0;
  double all_gather = 0;
  double reduce_scatter = 0;
  double all_reduce = 0;
};

struct StepCosts {
  std::vector<UnitCost> units;  // by index in the schedule
  double optimizer = 0;         // of kStep
  double issue = 0;             // that the host takes to issue the computation of a unit, before it issues what follows
  int root = 0;                 // has buffers of its own and takes no slot; -1 for none

  // Slots that the other units share, at least one each; see SlotCounts in units/memory_plan.h. An all-gather for which
  // none is left gets one more, as in the runtime.
  int unsharded_slots = 2;
  int gradient_slots = 2;
};

enum class StepStream : uint8_t { kCompute, kUnshard, kPostBackward, kAllReduce };

// "compute", "unshard", "post_backward", "all_reduce": the names of the streams in traces.
std::string_view StepStreamName(StepStream stream);

// One event's time on its stream; seconds from the beginning of the step.
struct TimedEvent {
  ScheduleEvent event;
  StepStream stream = StepStream::kCompute;
  double begin = 0;
  double end = 0;
};

struct StepTimeline {
  double seconds = 0;        // the end of the last event
  double compute = 0;        // the compute stream was busy, the optimizer included
  double exposed = 0;        // it waited for communication: seconds - compute
  double communication = 0;  // some collective ran

  // In the order of issue; events that take no time on a stream, such as reshards, are left out. The computation of a
  // unit after the units inside it is a second entry of the same event.
  std::vector<TimedEvent> events;
};

// kInvalidArgument for costs that do not fit the schedule: a unit without costs, a time that is negative or not finite,
// a number of slots below 1. Pure.
absl::StatusOr<StepTimeline> StepTime(const Schedule& schedule, const StepCosts& costs);

// The timeline as Chrome trace JSON, with the rows and names of train_gpt's --trace. `names` are the units' names.
std::string TimelineJson(const StepTimeline& timeline, absl::Span<const std::string> names);

}  // namespace fsdp

#endif  // FSDP_FSDP_STEP_TIME_STEP_TIME_H_
