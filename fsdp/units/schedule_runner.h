// SPDX-License-Identifier: Apache-2.0
//
// ScheduleRunner: runs the events of a pass's schedule on the units. The executor (executor.h) reports which unit is
// about to compute and which one has computed; the runner runs the plan up to that point. A unit that the plan does not
// have next is run by the schedule of only that visit, and so is every later one of the pass.
#ifndef FSDP_FSDP_UNITS_SCHEDULE_RUNNER_H_
#define FSDP_FSDP_UNITS_SCHEDULE_RUNNER_H_

#include <vector>

#include "absl/status/status.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_runtime.h"

namespace fsdp {

// A schedule's input about the units of a model: by index in schedules, every unit, then every bare module that
// recomputes. Strategies and settings are fixed; controls, such as a unit's requires_gradient_sync, are read now.
// `sync` off: backward keeps every gradient local (no_sync).
std::vector<UnitTraits> ScheduleTraitsOf(const UnitStore& units, bool sync);

// Units are named by their index in schedules: the UnitStore's units, then modules without parameters. One thread. No
// call waits for the device. Every call that may run events is collective.
class ScheduleRunner {
 public:
  // The function of schedule.h that makes the schedule of a single visit.
  enum class Direction {
    kForward,
    kBackward,   // of the unit itself, its own recomputation included
    kRecompute,  // a forward within the backward of another unit
  };

  // Both must outlive it.
  ScheduleRunner(UnitStore& units, UnitRuntime& runtime) : units_(units), runtime_(runtime) {}

  // From now on runs `plan`, which was made with `options` and Gathered(). Grows slots if the plan needs more; runs no
  // event yet.
  absl::Status BeginPass(Schedule plan, ScheduleOptions options);

  // The options of the last BeginPass.
  const ScheduleOptions& options() const { return options_; }

  // The unit is about to do `compute`, in a pass or recomputation of `direction`: runs the plan through it, or, if that
  // is not the plan's next computation, leaves the plan for the rest of the pass. Then the units that were all-gathered
  // ahead and not used give their slots back.
  absl::Status EnterUnit(const ScheduleEvent& compute, Direction direction);

  // The unit has computed: runs the events that the plan has for it before the next computation.
  absl::Status LeaveUnit(int index, Direction direction);

  // The unit that was entered by kRecompute continues with its own backward after that. No hook reports this moment, so
  // the next EnterUnit or LeaveUnit runs its kBackward. Does nothing once the plan was left.
  void AwaitBackward(int index);

  // All-gathers a unit outside of the plan, growing slots if needed.
  absl::Status Unshard(int index);
  void Reshard(int index);

  // Reshards the units whose copies are older than their shards (UnitRuntime::is_stale).
  void ReshardStale();

  // PassState::gathered of every index, as the functions of schedule.h take it.
  std::vector<bool> Gathered() const;

 private:
  Schedule OnDemand(int index, bool entering, Direction direction) const;
  void LeavePlan(int entering);
  absl::Status RunOnDemand(const Schedule& schedule);
  absl::Status RunAwaitedBackwards();
  absl::Status RunUntil(size_t end);
  absl::Status Run(const ScheduleEvent& event);

  UnitStore& units_;
  UnitRuntime& runtime_;
  ScheduleOptions options_;
  Schedule plan_;
  size_t next_ = 0;         // first event of plan_ not yet run
  bool following_ = false;  // the pass has kept to plan_ so far
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_SCHEDULE_RUNNER_H_
