// SPDX-License-Identifier: Apache-2.0
//
// Every stream, group and slot is a clock: the time at which its last user is done. An event begins at the latest of
// the clocks that it waits for and moves those that it occupies. This needs no queue of events: the schedule is in the
// order of issue, and streams and groups run their work in that order.
#include "fsdp/fsdp/step_time/step_time.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Kind = ScheduleEvent::Kind;

bool IsComputation(const ScheduleEvent& event) {
  return event.kind == Kind::kForward || event.kind == Kind::kRecompute || event.kind == Kind::kBackward;
}

bool IsReduction(const ScheduleEvent& event) {
  return event.kind == Kind::kReduceScatter || event.kind == Kind::kAllReduce || event.kind == Kind::kStoreGradient;
}

// Times at which slots become free, in the order in which they were given back.
class SlotClocks {
 public:
  explicit SlotClocks(int count) : free_(count, 0.0) {}

  double Acquire() {
    // Empty only if the schedule needs more slots than planned; the runtime would then add one.
    if (free_.empty()) return 0;
    const double free = free_.front();
    free_.pop_front();
    return free;
  }
  void Release(double free) { free_.push_back(free); }

 private:
  std::deque<double> free_;
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const StepCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        unsharded_(costs.unsharded_slots),
        gradients_(costs.gradient_slots),
        units_(costs.units.size()) {}

  StepTimeline Run() {
    for (size_t at = 0; at < schedule_.size(); ++at) Issue(at);
    for (size_t unit = 0; unit < units_.size(); ++unit) FinishInner(static_cast<int>(unit));
    // The step ends when its last stream does.
    timeline_.seconds = std::max({compute_, unshard_, post_backward_, all_reduce_});
    // All time without a computation: waits for collectives or for the host.
    timeline_.exposed = timeline_.seconds - timeline_.compute;
    timeline_.communication = Communication();
    return std::move(timeline_);
  }

 private:
  struct UnitState {
    double gathered = 0;
    bool holds_gradient_slot = false;
    // Decides the stream of a following all-reduce.
    bool scattered = false;  // reduce-scattered, and not all-reduced since
    ScheduleEvent inner;     // the computation that has a part after the units inside
    double after_inner = 0;  // its seconds; 0 if it does not exist or has run
  };

  bool TakesSlots(int unit) const { return unit != costs_.root; }

  void Add(const ScheduleEvent& event, StepStream stream, double begin, double end) {
    if (end > begin) timeline_.events.push_back({event, stream, begin, end});
  }

  void Compute(const ScheduleEvent& event, double not_before, double seconds) {
    const double begin = std::max({compute_, not_before, host_});
    compute_ = begin + seconds;
    timeline_.compute += seconds;
    Add(event, StepStream::kCompute, begin, compute_);
  }

  // Adds the rest of a forward or backward whose inner units have run.
  void FinishInner(int unit) {
    UnitState& state = units_[unit];
    const double seconds = std::exchange(state.after_inner, 0);
    if (seconds > 0) Compute(state.inner, 0, seconds);
  }

  void Issue(size_t at) {
    const ScheduleEvent& event = schedule_[at];
    if (event.kind == Kind::kStep) return Step(event);
    const UnitCost& cost = costs_.units[event.unit];
    UnitState& state = units_[event.unit];
    // An all-gather may be issued ahead of the unit's next computation, so it does not end the current one.
    if (event.kind != Kind::kAllGather) FinishInner(event.unit);
    const double issued = host_ + (IsComputation(event) ? costs_.issue : 0);
    IssueTo(at, event, cost, state);
    // The kernels of a computation are issued one after another, so it ends no sooner than the last is.
    host_ = issued;
    if (IsComputation(event)) compute_ = std::max(compute_, host_);
  }

  void IssueTo(size_t at, const ScheduleEvent& event, const UnitCost& cost, UnitState& state) {
    switch (event.kind) {
      case Kind::kAllGather:
        return AllGather(event, cost.all_gather);
      case Kind::kForward:
        Compute(event, state.gathered, cost.forward);
        state.inner = event;
        state.after_inner = cost.forward_after_inner;
        return;
      case Kind::kRecompute:
        return Compute(event, state.gathered, cost.recompute);
      case Kind::kBackward:
        return Backward(at, cost);
      case Kind::kReshard:
      case Kind::kReshardToGroup:
        // Compute reads the slot until now; an unused prefetch holds it until it has arrived.
        if (TakesSlots(event.unit)) unsharded_.Release(std::max(compute_, state.gathered));
        return;
      case Kind::kReduceScatter:
        // Waits for its backward, the stream, and the group: collectives of one group do not overlap.
        shard_group_ = std::max({post_backward_, compute_, shard_group_, host_}) + cost.reduce_scatter;
        Add(event, StepStream::kPostBackward, shard_group_ - cost.reduce_scatter, shard_group_);
        post_backward_ = shard_group_;
        state.scattered = true;
        return ReleaseGradient(event.unit, post_backward_);
      case Kind::kAllReduce:
        return AllReduce(event, cost.all_reduce);
      case Kind::kStoreGradient:
        return ReleaseGradient(event.unit, compute_);
      case Kind::kStep:
        return;
    }
  }

  void AllGather(const ScheduleEvent& event, double seconds) {
    const double slot = TakesSlots(event.unit) ? unsharded_.Acquire() : 0;
    shard_group_ = std::max({unshard_, slot, shard_group_, host_}) + seconds;
    unshard_ = shard_group_;
    units_[event.unit].gathered = unshard_;
    Add(event, StepStream::kUnshard, unshard_ - seconds, unshard_);
  }

  void Backward(size_t at, const UnitCost& cost) {
    const ScheduleEvent& event = schedule_[at];
    UnitState& state = units_[event.unit];
    double slot = 0;
    if (TakesSlots(event.unit) && IsReduced(at)) {
      slot = gradients_.Acquire();
      state.holds_gradient_slot = true;
    }
    Compute(event, std::max(state.gathered, slot), cost.backward);
    state.inner = event;
    state.after_inner = cost.backward_after_inner;
  }

  // False for a backward without synchronisation: its gradient stays in a separate buffer.
  bool IsReduced(size_t at) const {
    for (size_t next = at + 1; next < schedule_.size(); ++next) {
      if (schedule_[next].unit != schedule_[at].unit) continue;
      if (IsReduction(schedule_[next])) return true;
      if (schedule_[next].kind == Kind::kForward) return false;
    }
    return false;
  }

  // If the unit is also sharded, the all-reduce is only for this rank's part and has a separate stream.
  void AllReduce(const ScheduleEvent& event, double seconds) {
    const bool own_stream = std::exchange(units_[event.unit].scattered, false);
    double& stream = own_stream ? all_reduce_ : post_backward_;
    const double ready = own_stream ? post_backward_ : compute_;
    replica_group_ = std::max({stream, ready, replica_group_, host_}) + seconds;
    stream = replica_group_;
    Add(event, own_stream ? StepStream::kAllReduce : StepStream::kPostBackward, stream - seconds, stream);
    ReleaseGradient(event.unit, stream);
  }

  void ReleaseGradient(int unit, double free) {
    if (std::exchange(units_[unit].holds_gradient_slot, false)) gradients_.Release(free);
  }

  void Step(const ScheduleEvent& event) {
    for (size_t unit = 0; unit < units_.size(); ++unit) FinishInner(static_cast<int>(unit));
    Compute(event, std::max(post_backward_, all_reduce_), costs_.optimizer);
    unshard_ = std::max(unshard_, compute_);  // the next all-gather reads what the optimizer writes
  }

  // The length of the union of all collectives.
  double Communication() const {
    std::vector<std::pair<double, double>> spans;
    for (const TimedEvent& event : timeline_.events) {
      if (event.stream != StepStream::kCompute) spans.emplace_back(event.begin, event.end);
    }
    std::sort(spans.begin(), spans.end());
    // `covered` is the end of the union so far: the spans are sorted by begin.
    double total = 0, covered = 0;
    for (const auto& [begin, end] : spans) {
      total += std::max(0.0, end - std::max(begin, covered));
      covered = std::max(covered, end);
    }
    return total;
  }

  const Schedule& schedule_;
  const StepCosts& costs_;
  SlotClocks unsharded_, gradients_;
  std::vector<UnitState> units_;
  double compute_ = 0, unshard_ = 0, post_backward_ = 0, all_reduce_ = 0;  // streams
  double shard_group_ = 0, replica_group_ = 0;
  double host_ = 0;  // has issued all events so far
  StepTimeline timeline_;
};

absl::Status CheckSeconds(int unit, const char* field, double seconds) {
  if (std::isfinite(seconds) && seconds >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("StepCosts: ", field, unit < 0 ? "" : absl::StrCat(" of unit ", unit),
                                                 " takes ", seconds, " s, wanted a finite number of at least 0"));
}

absl::Status Validate(const Schedule& schedule, const StepCosts& costs) {
  const int count = static_cast<int>(costs.units.size());
  for (const ScheduleEvent& event : schedule) {
    const bool known = event.kind == Kind::kStep || (event.unit >= 0 && event.unit < count);
    if (known) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("StepCosts: the schedule has unit ", event.unit, ", wanted one of ", count, " with costs"));
  }
  for (int unit = 0; unit < count; ++unit) {
    const UnitCost& cost = costs.units[unit];
    const std::pair<const char*, double> fields[] = {{"forward", cost.forward},
                                                     {"forward_after_inner", cost.forward_after_inner},
                                                     {"backward", cost.backward},
                                                     {"backward_after_inner", cost.backward_after_inner},
                                                     {"recompute", cost.recompute},
                                                     {"all_gather", cost.all_gather},
                                                     {"reduce_scatter", cost.reduce_scatter},
                                                     {"all_reduce", cost.all_reduce}};
    for (const auto& [field, seconds] : fields) FSDP_RETURN_IF_ERROR(CheckSeconds(unit, field, seconds));
  }
  FSDP_RETURN_IF_ERROR(CheckSeconds(-1, "optimizer", costs.optimizer));
  FSDP_RETURN_IF_ERROR(CheckSeconds(-1, "issue", costs.issue));
  if (costs.unsharded_slots >= 1 && costs.gradient_slots >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("StepCosts: ", costs.unsharded_slots, " unsharded and ",
                                                 costs.gradient_slots, " gradient slots, wanted at least 1 of each"));
}

}  // namespace

std::string_view StepStreamName(StepStream stream) {
  switch (stream) {
    case StepStream::kCompute:
      return "compute";
    case StepStream::kUnshard:
      return "unshard";
    case StepStream::kPostBackward:
      return "post_backward";
    case StepStream::kAllReduce:
      return "all_reduce";
  }
  return "unknown";
}

absl::StatusOr<StepTimeline> StepTime(const Schedule& schedule, const StepCosts& costs) {
  FSDP_RETURN_IF_ERROR(Validate(schedule, costs));
  return Simulation(schedule, costs).Run();
}

std::string TimelineJson(const StepTimeline& timeline, absl::Span<const std::string> names) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (const StepStream stream :
       {StepStream::kCompute, StepStream::kUnshard, StepStream::kPostBackward, StepStream::kAllReduce}) {
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", 0},
                      {"tid", static_cast<int>(stream)},
                      {"args", {{"name", StepStreamName(stream)}}}});
  }
  for (const TimedEvent& timed : timeline.events) {
    std::string name = RenderSchedule({timed.event}, names);
    name.pop_back();  // the end of the line
    events.push_back({{"ph", "X"},
                      {"name", name},
                      {"pid", 0},
                      {"tid", static_cast<int>(timed.stream)},
                      {"ts", timed.begin * 1e6},
                      {"dur", (timed.end - timed.begin) * 1e6}});
  }
  return nlohmann::ordered_json({{"traceEvents", events}}).dump() + "\n";
}

}  // namespace fsdp
