// SPDX-License-Identifier: Apache-2.0
//
// A pass is a plan, made when the root's hook opens it, and hooks that advance the plan:
//
//   hook of a unit                    runs the plan
//   PreForward, PreBackward           through the unit's computation: its all-gather, and prefetches that come before
//   it PostForward, PostBackward         through the unit's events before the next computation: reshard, reductions
//
//      idle --PreForward(root)--> forward --PostForward(root)--> idle --PreBackward(root)--> backward --...--> idle
//
// Everything that a hook runs is work put on streams. No hook waits for any of it, so the host runs ahead of the
// device.
//
// The plan of a forward comes from the order in which units ran in the last forward (at first: the order in which
// modules are registered), the plan of a backward from the forward before it. A model may run its modules in another
// order this time. Then the executor leaves the plan for the rest of the pass: units that were all-gathered ahead and
// not used give their slots back, and each unit that is entered is all-gathered on demand, by the schedule of that one
// visit. The next pass is planned from the new order. So a change of order costs overlap once, and never a wrong
// result.
//
// Hooks could decide by themselves what to gather next, as PyTorch's do. A plan says the same beforehand: it can be
// printed, compared with PyTorch's line by line, and counted for the slots that it needs before memory is allocated.
#include "fsdp/fsdp/units/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/writeback.h"

namespace fsdp {
namespace {

using Kind = ScheduleEvent::Kind;

bool IsCompute(const ScheduleEvent& event) { return event.kind == Kind::kForward || event.kind == Kind::kBackward; }

// The slots that a step in this order needs. Gradients: one more than units that are in backward at one time, so that a
// reduction overlaps the next unit's backward. Unsharded parameters: the most that two micro-steps hold, since the
// second begins with what the first left unsharded; without limit_all_gathers, or if a unit is not sharded and so may
// take a slot at any time, one for each unit.
SlotCounts CountSlots(const std::vector<UnitVisit>& order, const UnitStore& units, const ScheduleOptions& options,
                      bool limit_all_gathers) {
  const int root = units.root_unit();
  const int others = units.size() - (root >= 0 ? 1 : 0);
  int depth = 0, deepest = 0;
  for (const UnitVisit& visit : order) {
    if (visit.unit == root) continue;
    depth += visit.enter ? 1 : -1;
    deepest = std::max(deepest, depth);
  }
  SlotCounts counts;
  counts.gradients = std::min(deepest + 1, others);
  counts.unsharded = others;
  const bool all_gathered =
      std::all_of(options.units.begin(), options.units.end(), [](const UnitTraits& unit) { return unit.sharded; });
  if (limit_all_gathers && all_gathered) {
    const Schedule step = StepSchedule(order, 2, options);
    counts.unsharded = MaxUnsharded(step, std::vector<bool>(units.size(), false), root);
  }
  return counts;
}

}  // namespace

Executor::Executor(Module& root, UnitStore& units, const ExecutorOptions& options)
    : root_(root),
      units_(units),
      options_(options),
      expected_(units.registration_order()),
      states_(units.size()),
      casts_(units, options.root) {
  if (options.check_execution_order) order_check_.emplace(units.groups());
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(Module& root, UnitStore& units,
                                                           const ExecutorOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(root, units, options));
  const SlotCounts slots =
      CountSlots(executor->expected_, units, executor->CurrentOptions(), options.limit_all_gathers);
  FSDP_ASSIGN_OR_RETURN(executor->runtime_, UnitRuntime::Create(units, MemoryPlan::Of(units, slots)));
  root.set_hooks(executor.get());
  for (const auto& unit : units.units()) {
    for (Module* module : unit->modules) {
      module->set_hooks(executor.get());
      module->set_recompute(unit->settings.activation_checkpointing);
    }
  }
  return executor;
}

Executor::~Executor() {
  for (const auto& unit : units_.units()) {
    for (Module* module : unit->modules) {
      module->set_hooks(nullptr);
      module->set_recompute(false);
    }
  }
  root_.set_hooks(nullptr);
}

ScheduleOptions Executor::CurrentOptions() const {
  ScheduleOptions options;
  options.backward_prefetch = options_.backward_prefetch;
  options.forward_prefetch = options_.forward_prefetch;
  for (int index = 0; index < units_.size(); ++index) {
    const Unit& unit = units_.unit(index);
    const UnitControls& controls = unit.controls;
    UnitTraits traits = UnitTraits::Of(unit.strategy, index == units_.root_unit());
    traits.trainable = unit.trainable();
    traits.sync = sync_ && controls.requires_gradient_sync;
    traits.all_reduce = controls.requires_all_reduce;
    traits.reshard_after_forward = controls.reshard_after_forward.value_or(traits.reshard_after_forward);
    traits.reshard_to_group = unit.post_forward_group != nullptr;
    if (unit.settings.gradient_rules == GradientRules::kFsdp2) {
      traits.reshard_after_backward = traits.reshard_after_sync = controls.reshard_after_backward;
    }
    traits.unshard_in_backward = controls.unshard_in_backward;
    traits.recompute = unit.settings.activation_checkpointing;
    traits.forward_prefetch = controls.forward_prefetch;
    traits.backward_prefetch = controls.backward_prefetch;
    options.units.push_back(std::move(traits));
  }
  return options;
}

absl::Status Executor::CheckBetweenPasses(std::string_view call) const {
  if (!in_pass_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(call), " within a forward or backward: call it between them"));
}

absl::Status Executor::CheckIdle(std::string_view call) {
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses(call));
  FSDP_RETURN_IF_ERROR(WriteBackReplaced(units_, runtime_->compute_stream()));
  for (const auto& unit : units_.units()) unit->NoteShardChanged();  // the caller may change shards next
  return runtime_->Synchronize();
}

absl::Status Executor::PrepareReplay() {
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses("a captured step"));
  FSDP_RETURN_IF_ERROR(CheckNotSummoned("a captured step"));
  for (int index = 0; index < units_.size(); ++index) {
    const Unit& unit = units_.unit(index);
    if (states_[index].unsharded) {
      return absl::FailedPreconditionError(
          absl::StrCat("unit ", unit.display_name(),
                       " is unsharded before a captured step, which all-gathers it: reshard it first"));
    }
    for (const auto& parameter : unit.sharded_parameters) {
      if (!parameter->has_grad) continue;
      return absl::FailedPreconditionError(absl::StrCat("parameter \"", parameter->fqn,
                                                        "\" has a gradient before a captured step, which does not add "
                                                        "to it: call the optimizer's ZeroGrad first"));
    }
  }
  FSDP_RETURN_IF_ERROR(WriteBackReplaced(units_, runtime_->compute_stream()));
  post_optim_event_ = Event();  // a replay waits for all compute, and a later forward must not wait for less
  runtime_->RefreshComputeShards();
  return absl::OkStatus();
}

absl::Status Executor::GatherAnew() {
  for (int index = 0; index < units_.size(); ++index) {
    runtime_->Reshard(index);
    units_.unit(index).NoteShardChanged();
    if (states_[index].unsharded) FSDP_RETURN_IF_ERROR(runtime_->Unshard(index));
  }
  return runtime_->Synchronize();
}

absl::Status Executor::CheckNotSummoned(std::string_view pass) const {
  for (const auto& unit : units_.units()) {
    if (!unit->summoned) continue;
    return absl::FailedPreconditionError(absl::StrCat(std::string(pass), " while a SummonFullParamsGuard has unit ",
                                                      unit->display_name(), ": close it first"));
  }
  return absl::OkStatus();
}

absl::Status Executor::PreForward(Module& module, Tensor& input, Tape& tape) {
  const int index = units_.IndexOf(module);
  if (in_backward_) {
    // Activation checkpointing runs the forward of a unit again within its backward, and with it the forwards of the
    // units inside. These are not visits of the plan. Their own backwards follow, so they stay unsharded.
    if (index >= 0) FSDP_RETURN_IF_ERROR(RunAll({{Kind::kAllGather, index}, {Kind::kRecompute, index}}));
  } else if (&module == &root_) {
    FSDP_RETURN_IF_ERROR(BeginForward(tape));
  } else if (!in_pass_) {
    return absl::FailedPreconditionError(absl::StrCat("forward of unit ", units_.unit(index).display_name(),
                                                      " outside of a forward of the model: call the root's"));
  }
  if (index >= 0 && !in_backward_) FSDP_RETURN_IF_ERROR(EnterForward(index));
  return casts_.Input(index >= 0 ? index : units_.size(), training(), input, tape);
}

absl::Status Executor::BeginForward(Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckNotSummoned("forward"));
  if (&tape.stream() != &runtime_->compute_stream()) {
    return absl::FailedPreconditionError(
        "forward on a tape of another stream: make the tape with the model's NewTape()");
  }
  FSDP_RETURN_IF_ERROR(WriteBackReplaced(units_, runtime_->compute_stream()));
  schedule_options_ = CurrentOptions();
  schedule_options_.training = tape.keep_for_backward();
  visits_.clear();
  ForgetModulesRun();
  runtime_->WaitForOptimizer(std::exchange(post_optim_event_, Event()));
  runtime_->set_full_precision(!training());
  for (int index = 0; index < units_.size(); ++index) {
    if (!training() && units_.unit(index).settings.full_precision_in_eval) Reshard(index);
  }
  BeginPass(ForwardSchedule(expected_, Unsharded(), schedule_options_));
  return runtime_->EnsureSlots(MaxUnsharded(plan_, Unsharded(), units_.root_unit()));
}

absl::Status Executor::EnterForward(int index) {
  if (states_[index].modules_run > 0) return absl::OkStatus();
  if (order_check_.has_value() && training()) {
    std::string warning;
    FSDP_RETURN_IF_ERROR(order_check_->Enter(units_.unit(index).display_name(), &warning));
    if (!warning.empty()) units_.AddWarning(std::move(warning));
  }
  visits_.push_back({index, /*enter=*/true});
  FSDP_RETURN_IF_ERROR(EnterUnit(visits_.back()));
  BeginSpan("forward", index);
  return absl::OkStatus();
}

absl::Status Executor::PostForward(Module& module, Tensor& output, Tape& tape) {
  const int index = units_.IndexOf(module);
  FSDP_RETURN_IF_ERROR(casts_.Output(index >= 0 ? index : units_.size(), output, tape));
  if (in_backward_) return absl::OkStatus();
  if (index >= 0 && RanAllModules(index)) {
    EndSpan();
    states_[index].modules_run = 0;
    visits_.push_back({index, /*enter=*/false});
    FSDP_RETURN_IF_ERROR(LeaveUnit(visits_.back()));
  }
  if (&module != &root_) return absl::OkStatus();
  if (order_check_.has_value() && training()) {
    std::string warning;
    FSDP_RETURN_IF_ERROR(order_check_->EndForward(&warning));
    if (!warning.empty()) units_.AddWarning(std::move(warning));
  }
  EndForward();
  return absl::OkStatus();
}

void Executor::EndForward() {
  // A unit of several modules of which some never ran was entered and not left: it leaves before the root.
  const auto end = visits_.end() - (units_.root_unit() >= 0 ? 1 : 0);
  std::vector<UnitVisit> unfinished;
  for (int index = 0; index < units_.size(); ++index) {
    const int modules_run = states_[index].modules_run;
    if (modules_run == 0) continue;
    unfinished.push_back({index, /*enter=*/false});
    units_.AddWarning(absl::StrCat("unit ", units_.unit(index).display_name(), ": only ", modules_run, " of its ",
                                   units_.unit(index).modules.size(), " modules ran in a forward"));
  }
  visits_.insert(end, unfinished.begin(), unfinished.end());
  expected_ = visits_;
  in_pass_ = false;
  for (int index = 0; index < units_.size(); ++index) {
    if (!training()) Reshard(index);
    // Backward binds the parameters again that stay unsharded for it. Undefined until then, they make it an error, and
    // not a silent loss, to edit them in between.
    for (const auto& parameter : units_.unit(index).parameters) parameter->data = Tensor();
  }
}

absl::Status Executor::PreBackward(Module& module, Tensor& grad_output, Tape& tape) {
  const int index = units_.IndexOf(module);
  if (&module == &root_) {
    FSDP_RETURN_IF_ERROR(CheckNotSummoned("backward"));
    in_backward_ = true;
    schedule_options_ = CurrentOptions();
    ForgetModulesRun();
    BeginPass(BackwardSchedule(visits_, Unsharded(), schedule_options_));
    FSDP_RETURN_IF_ERROR(runtime_->EnsureSlots(MaxUnsharded(plan_, Unsharded(), units_.root_unit())));
  } else if (!in_backward_) {
    return absl::FailedPreconditionError(absl::StrCat("backward of unit ", units_.unit(index).display_name(),
                                                      " outside of a backward of the model: call the root's"));
  }
  FSDP_RETURN_IF_ERROR(casts_.GradOutput(index >= 0 ? index : units_.size(), grad_output, tape));
  if (index < 0) return absl::OkStatus();
  if (states_[index].modules_run == 0) {
    // Backward enters a unit where forward left it.
    FSDP_RETURN_IF_ERROR(EnterUnit({index, /*enter=*/false}));
    BeginSpan("backward", index);
  }
  return runtime_->gradients().Bind(index, GradientReduction::SyncIf(schedule_options_.units[index].sync));
}

absl::Status Executor::PostBackward(Module& module, Tensor& grad_input, Tape& tape) {
  const int index = units_.IndexOf(module);
  FSDP_RETURN_IF_ERROR(casts_.GradInput(index >= 0 ? index : units_.size(), grad_input, tape));
  if (index >= 0 && RanAllModules(index)) FSDP_RETURN_IF_ERROR(LeaveBackward(index));
  if (&module != &root_) return absl::OkStatus();
  // Units of several modules of which some have no backward.
  for (int other = 0; other < units_.size(); ++other) {
    if (states_[other].modules_run > 0) FSDP_RETURN_IF_ERROR(LeaveBackward(other));
  }
  EndBackward();
  return absl::OkStatus();
}

absl::Status Executor::LeaveBackward(int index) {
  EndSpan();
  states_[index].modules_run = 0;
  runtime_->gradients().Unbind(index, GradientReduction::SyncIf(schedule_options_.units[index].sync));
  return LeaveUnit({index, /*enter=*/true});
}

// Counts a module of the unit that has run; true when it was the last.
bool Executor::RanAllModules(int index) {
  return ++states_[index].modules_run == static_cast<int>(units_.unit(index).modules.size());
}

void Executor::ForgetModulesRun() {
  for (UnitState& state : states_) state.modules_run = 0;
}

std::vector<bool> Executor::Unsharded() const {
  std::vector<bool> unsharded;
  for (const UnitState& state : states_) unsharded.push_back(state.unsharded);
  return unsharded;
}

// Reshards the units that backward left unsharded: those that were prefetched and not used, and those whose backward
// never came. After a backward without synchronisation, units that are kept for the next forward stay unsharded.
void Executor::EndBackward() {
  in_pass_ = false;
  in_backward_ = false;
  if (!is_last_backward_) return;
  runtime_->gradients().WaitForReductions();
  for (int index = 0; index < units_.size(); ++index) {
    if (schedule_options_.units[index].ReshardsAfterBackward()) Reshard(index);
  }
}

void Executor::BeginPass(Schedule plan) {
  plan_ = std::move(plan);
  next_ = 0;
  following_ = true;
  in_pass_ = true;
}

// The schedule of one visit alone, for a unit that the plan does not have next.
Schedule Executor::OnDemand(const UnitVisit& visit) const {
  return in_backward_ ? BackwardSchedule({visit}, Unsharded(), schedule_options_)
                      : ForwardSchedule({visit}, Unsharded(), schedule_options_);
}

// Runs the plan through the unit's computation if that is the plan's next one. Otherwise leaves the plan for the rest
// of the pass.
absl::Status Executor::EnterUnit(const UnitVisit& visit) {
  const ScheduleEvent compute{in_backward_ ? Kind::kBackward : Kind::kForward, visit.unit};
  const auto planned = std::find_if(plan_.begin() + next_, plan_.end(), IsCompute);
  if (following_ && planned != plan_.end() && *planned == compute) {
    return RunUntil(planned - plan_.begin() + 1);
  }
  // Made before LeavePlan reshards: a unit that was prefetched in vain is not gathered again at once.
  const Schedule on_demand = OnDemand(visit);
  LeavePlan(visit.unit);
  return RunAll(on_demand);
}

// From here on units are unsharded on demand. Those that the plan unsharded ahead give their slots back.
void Executor::LeavePlan(int entering) {
  following_ = false;
  for (int index = 0; index < units_.size(); ++index) {
    if (index != entering && states_[index].unsharded && !states_[index].used) Reshard(index);
  }
}

// Runs the events that the plan has for the unit before the next computation, and all events before them.
absl::Status Executor::LeaveUnit(const UnitVisit& visit) {
  if (!following_) return RunAll(OnDemand(visit));
  size_t end = next_;
  for (size_t i = next_; i < plan_.size() && !IsCompute(plan_[i]); ++i) {
    if (plan_[i].unit == visit.unit) end = i + 1;
  }
  return RunUntil(end);
}

absl::Status Executor::RunAll(const Schedule& schedule) {
  for (const ScheduleEvent& event : schedule) FSDP_RETURN_IF_ERROR(Run(event));
  return absl::OkStatus();
}

absl::Status Executor::RunUntil(size_t end) {
  while (next_ < end) FSDP_RETURN_IF_ERROR(Run(plan_[next_++]));
  return absl::OkStatus();
}

absl::Status Executor::Run(const ScheduleEvent& event) {
  const int index = event.unit;
  switch (event.kind) {
    case Kind::kAllGather:
      if (!states_[index].unsharded) states_[index].used = false;
      states_[index].unsharded = units_.unit(index).sharded();
      return runtime_->Unshard(index);
    case Kind::kForward:
    case Kind::kRecompute:
      states_[index].used = true;
      return runtime_->BindParameters(index);
    case Kind::kBackward:
      states_[index].used = true;
      // The program promised that backward does not read the parameters, so they stay undefined.
      if (!schedule_options_.units[index].unshard_in_backward && !runtime_->is_unsharded(index)) {
        return absl::OkStatus();
      }
      return runtime_->BindParameters(index);
    case Kind::kReshard:
      Reshard(index);
      return absl::OkStatus();
    case Kind::kReshardToGroup:
      runtime_->ReshardToGroup(index);
      states_[index].unsharded = false;
      return absl::OkStatus();
    case Kind::kReduceScatter:
      return runtime_->gradients().ReduceScatter(index);
    case Kind::kAllReduce:
      return runtime_->gradients().AllReduce(index);
    case Kind::kStep:
      return absl::OkStatus();
  }
  return absl::InternalError("unknown schedule event");
}

absl::Status Executor::Unshard(int index) {
  if (states_[index].unsharded) return absl::OkStatus();
  if (!in_pass_) runtime_->WaitForOptimizer(Event());
  const auto unsharded =
      std::count_if(states_.begin(), states_.end(), [](const UnitState& state) { return state.unsharded; });
  FSDP_RETURN_IF_ERROR(runtime_->EnsureSlots(static_cast<int>(unsharded) + 1));
  states_[index].unsharded = units_.unit(index).sharded();
  states_[index].used = true;
  return runtime_->Unshard(index);
}

absl::Status Executor::WaitForUnshard(int index) { return runtime_->BindParameters(index); }

void Executor::Reshard(int index) {
  runtime_->Reshard(index);
  states_[index].unsharded = false;
}

Schedule Executor::PlanStep(int micro_steps) const {
  ScheduleOptions options = CurrentOptions();
  options.training = true;
  return StepSchedule(expected_, micro_steps, options);
}

void Executor::BeginSpan(std::string_view pass, int index) {
  if (units_.trace() == nullptr) return;
  units_.trace()->Begin(runtime_->compute_stream(),
                        absl::StrCat(std::string(pass), " ", units_.unit(index).display_name()));
}

void Executor::EndSpan() {
  if (units_.trace() != nullptr) units_.trace()->End(runtime_->compute_stream());
}

}  // namespace fsdp
