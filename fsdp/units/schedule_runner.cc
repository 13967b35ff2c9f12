// SPDX-License-Identifier: Apache-2.0
//
// A model may run its modules in another order than the plan's. Then the runner leaves the plan for the rest of the
// pass: units that were all-gathered ahead and not used give their slots back, and each unit that is entered is
// all-gathered on demand, by the schedule of that one visit. The next pass is planned from the new order. So a change
// of order costs overlap once, and never a wrong result.
#include "fsdp/fsdp/units/schedule_runner.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

using Kind = ScheduleEvent::Kind;

bool IsCompute(const ScheduleEvent& event) {
  return event.kind == Kind::kForward || event.kind == Kind::kRecompute || event.kind == Kind::kBackward;
}

UnitTraits TraitsOf(const UnitStore& units, int index, bool sync) {
  Unit& unit = units.unit(index);
  const UnitControls& controls = unit.controls;
  const bool fsdp2 = unit.settings.gradient_rules == GradientRules::kFsdp2;
  UnitTraits traits = UnitTraits::Of(unit.strategy, unit.settings.is_root || index == units.root_unit());
  // In a world of one, FSDP1 calls its collective, and FSDP2 does not.
  if (fsdp2 && unit.groups.data_parallel_size() == 1) traits.replicated = false;
  traits.trainable = unit.any_trainable();
  traits.sync = sync && controls.requires_gradient_sync;
  traits.all_reduce = controls.requires_all_reduce;
  traits.reshard_after_forward = controls.reshard_after_forward.value_or(traits.reshard_after_forward);
  traits.reshard_to_group = unit.post_forward_group != nullptr;
  if (fsdp2) traits.reshard_after_backward = traits.reshard_after_sync = controls.reshard_after_backward;
  traits.unshard_in_backward = controls.unshard_in_backward;
  traits.recompute = unit.settings.activation_checkpointing;
  traits.recomputes_inner = unit.modules.size() == 1;
  traits.backward_prefetch_order = unit.settings.backward_prefetch;
  traits.forward_prefetch_next = unit.settings.forward_prefetch;
  traits.forward_prefetch = controls.forward_prefetch;
  traits.backward_prefetch = controls.backward_prefetch;
  return traits;
}

}  // namespace

std::vector<UnitTraits> ScheduleTraitsOf(const UnitStore& units, bool sync) {
  std::vector<UnitTraits> traits;
  for (int index = 0; index < units.size(); ++index) traits.push_back(TraitsOf(units, index, sync));
  // Bare modules that recompute follow the units in schedules; they have nothing to gather or reduce.
  const UnitTraits bare{.sharded = false, .trainable = false, .recompute = true, .has_parameters = false};
  traits.resize(units.num_scheduled(), bare);
  return traits;
}

std::vector<bool> ScheduleRunner::Gathered() const {
  std::vector<bool> gathered;
  for (int index = 0; index < units_.num_scheduled(); ++index) gathered.push_back(units_.pass(index).gathered);
  return gathered;
}

absl::Status ScheduleRunner::BeginPass(Schedule plan, ScheduleOptions options) {
  plan_ = std::move(plan);
  options_ = std::move(options);
  next_ = 0;
  following_ = true;
  for (int index = 0; index < units_.num_scheduled(); ++index) units_.pass(index).awaits_backward = false;
  // Units that the last pass left unsharded count too: they hold slots from the beginning.
  return runtime_.EnsureSlots(MaxUnsharded(plan_, Gathered(), units_.root_unit()));
}

// The schedule of only one visit. Backward enters a unit at forward's exit.
Schedule ScheduleRunner::OnDemand(int index, bool entering, Direction direction) const {
  switch (direction) {
    case Direction::kForward:
      return ForwardSchedule({{index, entering}}, Gathered(), options_);
    case Direction::kRecompute:
      return RecomputeSchedule({{index, entering}}, Gathered(), options_);
    case Direction::kBackward:
      break;
  }
  return BackwardSchedule({{index, !entering}}, Gathered(), options_);
}

absl::Status ScheduleRunner::EnterUnit(const ScheduleEvent& compute, Direction direction) {
  FSDP_RETURN_IF_ERROR(RunAwaitedBackwards());
  const auto planned = std::find_if(plan_.begin() + next_, plan_.end(), IsCompute);
  if (following_ && planned != plan_.end() && *planned == compute) {
    return RunUntil(planned - plan_.begin() + 1);
  }
  // Made before LeavePlan reshards, so that a unit that was prefetched in vain is not gathered again immediately.
  const Schedule schedule = OnDemand(compute.unit, /*entering=*/true, direction);
  LeavePlan(compute.unit);
  return RunOnDemand(schedule);
}

absl::Status ScheduleRunner::LeaveUnit(int index, Direction direction) {
  FSDP_RETURN_IF_ERROR(RunAwaitedBackwards());
  if (!following_) return RunOnDemand(OnDemand(index, /*entering=*/false, direction));
  size_t end = next_;
  // A prefetch of another unit may be between the last computation and this unit's events, so the search does not stop
  // at it.
  for (size_t i = next_; i < plan_.size() && !IsCompute(plan_[i]); ++i) {
    if (plan_[i].unit == index) end = i + 1;
  }
  return RunUntil(end);
}

void ScheduleRunner::AwaitBackward(int index) { units_.pass(index).awaits_backward = following_; }

absl::Status ScheduleRunner::RunAwaitedBackwards() {
  while (following_ && next_ < plan_.size() && plan_[next_].kind == Kind::kBackward &&
         units_.pass(plan_[next_].unit).awaits_backward) {
    units_.pass(plan_[next_].unit).awaits_backward = false;
    FSDP_RETURN_IF_ERROR(Run(plan_[next_++]));
  }
  return absl::OkStatus();
}

void ScheduleRunner::LeavePlan(int entering) {
  following_ = false;
  for (int index = 0; index < units_.size(); ++index) {
    const PassState& pass = units_.pass(index);
    // `used` units keep their slot: their own exit, or their backward, reshards them.
    if (index != entering && pass.gathered && !pass.used) Reshard(index);
  }
}

// An unplanned order may need more slots than were planned.
absl::Status ScheduleRunner::RunOnDemand(const Schedule& schedule) {
  FSDP_RETURN_IF_ERROR(runtime_.EnsureSlots(MaxUnsharded(schedule, Gathered(), units_.root_unit())));
  for (const ScheduleEvent& event : schedule) FSDP_RETURN_IF_ERROR(Run(event));
  return absl::OkStatus();
}

absl::Status ScheduleRunner::RunUntil(size_t end) {
  while (next_ < end) FSDP_RETURN_IF_ERROR(Run(plan_[next_++]));
  return absl::OkStatus();
}

absl::Status ScheduleRunner::Run(const ScheduleEvent& event) {
  const int index = event.unit;
  if (index < 0 || index >= units_.size()) return absl::OkStatus();  // a bare module: computes, has nothing to bind
  PassState& pass = units_.pass(index);
  switch (event.kind) {
    case Kind::kAllGather:
      // A unit that is still gathered keeps `used`: only a new gather starts unused.
      if (!pass.gathered) pass.used = false;
      pass.gathered = units_.unit(index).sharded();
      return runtime_.Unshard(index);
    case Kind::kForward:
    case Kind::kRecompute:
      pass.used = true;
      return runtime_.BindParameters(index);
    case Kind::kBackward:
      pass.used = true;
      // The program promised that backward does not read the parameters, so they stay undefined.
      if (!options_.units[index].unshard_in_backward && !runtime_.is_unsharded(index)) return absl::OkStatus();
      return runtime_.BindParameters(index);
    case Kind::kReshard:
      Reshard(index);
      return absl::OkStatus();
    case Kind::kReshardToGroup:
      runtime_.ReshardToGroup(index);
      pass.gathered = false;
      return absl::OkStatus();
    case Kind::kReduceScatter:
      return runtime_.gradients().ReduceScatter(index);
    case Kind::kAllReduce:
      return runtime_.gradients().AllReduce(index);
    case Kind::kStoreGradient:
      return runtime_.gradients().StoreLocal(index);
    case Kind::kStep:
      return absl::OkStatus();
  }
  return absl::InternalError("unknown schedule event");
}

absl::Status ScheduleRunner::Unshard(int index) {
  const std::vector<bool> gathered = Gathered();
  const auto others = std::count(gathered.begin(), gathered.end(), true);
  FSDP_RETURN_IF_ERROR(runtime_.EnsureSlots(static_cast<int>(others) + 1));
  units_.pass(index).gathered = units_.unit(index).sharded();
  units_.pass(index).used = true;
  return runtime_.Unshard(index);
}

void ScheduleRunner::Reshard(int index) {
  runtime_.Reshard(index);
  units_.pass(index).gathered = false;
}

void ScheduleRunner::ReshardStale() {
  for (int index = 0; index < units_.size(); ++index) {
    if (runtime_.is_stale(index)) Reshard(index);
  }
}

}  // namespace fsdp
