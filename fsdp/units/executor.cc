// SPDX-License-Identifier: Apache-2.0
//
// A pass is a plan, made when the root's hook opens it, and hooks that advance the plan:
//
//   hook of a unit                    runs the plan
//   PreForward, PreBackward           through the unit's computation: its all-gather, and prefetches before it
//   PostForward, PostBackward         through the unit's events before the next computation: reshard, reductions
//
//      idle --PreForward(root)--> forward --PostForward(root)--> idle --PreBackward(root)--> backward --...--> idle
//
// With passes_below_root the module that a program calls first takes the place of the root in this picture (top_).
//
// Everything that a hook runs is work put on streams. No hook waits for any of it, so the host runs ahead of the
// device. Under FSDP2's rules the root's PostBackward waits for the other hosts' messages about the gradients that
// backward used.
//
// Activation checkpointing runs forwards within a backward. They are computations of the backward's plan: kRecompute of
// the unit itself, by its PreBackward, then of the units inside, by their PreForward and PostForward.
//
// The plan of a forward comes from the order in which units ran in the last forward (at first: the order in which
// modules are registered), the plan of a backward from the forward before it. schedule_runner.cc runs it, and handles
// modules that run in another order this time.
//
// A pass that fails stays open, and refuses the calls between passes, until the root's next forward. That forward
// discards the gradients of a failed backward, so that no later step adds to an incomplete one.
//
// Hooks could decide by themselves what to gather next, as PyTorch's do. A plan makes the same decisions beforehand: it
// can be printed, compared with PyTorch's line by line, and counted for the slots that it needs before memory is
// allocated.
#include "fsdp/fsdp/units/executor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/writeback.h"

namespace fsdp {
namespace {

using Kind = ScheduleEvent::Kind;
using Direction = ScheduleRunner::Direction;

}  // namespace

Executor::Executor(Module& root, UnitStore& units, const ExecutorOptions& options)
    : root_(root), units_(units), options_(options), top_(&root), orders_(root, units), casts_(units) {
  for (BareModule& bare : units.bare_modules()) bare.pass = PassState();
  if (options.check_execution_order) order_check_.emplace(units.groups());
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(Module& root, UnitStore& units,
                                                           const ExecutorOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(root, units, options));
  executor->slots_ =
      SlotCounts::Of(executor->orders_.Forward(root), units, executor->CurrentOptions(), options.limit_all_gathers);
  FSDP_ASSIGN_OR_RETURN(executor->runtime_,
                        UnitRuntime::Create(units, MemoryPlan::Of(units, executor->slots_), options.streams));
  executor->runner_.emplace(units, *executor->runtime_);
  const auto hook = [&executor](const std::vector<Module*>& modules, const UnitSettings& settings) {
    for (Module* module : modules) {
      module->set_hooks(executor.get());
      module->set_recompute(settings.activation_checkpointing);
    }
  };
  for (const auto& unit : units.units()) hook(unit->modules, unit->settings);
  for (const BareModule& bare : units.bare_modules()) hook(bare.modules, bare.settings);
  return executor;
}

Executor::~Executor() {
  const auto unhook = [](const std::vector<Module*>& modules) {
    for (Module* module : modules) {
      module->set_hooks(nullptr);
      module->set_recompute(false);
    }
  };
  for (const auto& unit : units_.units()) unhook(unit->modules);
  for (const BareModule& bare : units_.bare_modules()) unhook(bare.modules);
}

ScheduleOptions Executor::CurrentOptions() const {
  ScheduleOptions options;
  options.backward_prefetch = options_.backward_prefetch;
  options.forward_prefetch = options_.forward_prefetch;
  options.units = ScheduleTraitsOf(units_, sync_);
  return options;
}

absl::Status Executor::CheckBetweenPasses(std::string_view call) const {
  if (!in_pass_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(call),
                   " within a forward or backward: call it between them; after one that failed, run a forward first"));
}

absl::Status Executor::CheckIdle(std::string_view call) {
  FSDP_RETURN_IF_ERROR(CheckBetweenPasses(call));
  FSDP_RETURN_IF_ERROR(WriteBack());
  return runtime_->Synchronize();
}

absl::Status Executor::WriteBack() {
  std::vector<bool> gathered;
  for (int index = 0; index < units_.size(); ++index) gathered.push_back(runtime_->has_gathered_copy(index));
  return WriteBackReplaced(units_, gathered, runtime_->compute_stream());
}

absl::Status Executor::CheckNotSummoned(std::string_view pass) const {
  for (const auto& unit : units_.units()) {
    if (!unit->summoned) continue;
    return absl::FailedPreconditionError(absl::StrCat(std::string(pass), " while a SummonFullParamsGuard has unit ",
                                                      unit->display_name(), ": close it first"));
  }
  return absl::OkStatus();
}

absl::Status Executor::PreForward(Module& module, absl::Span<Tensor> inputs, Tape& tape) {
  const int index = units_.ScheduledIndexOf(module);
  FSDP_ASSIGN_OR_RETURN(const bool opens, OpensForward(module));
  if (opens) {
    FSDP_RETURN_IF_ERROR(BeginForward(module, tape));
    FSDP_RETURN_IF_ERROR(PlaceInputs(inputs, tape));
  }
  if (index >= 0) FSDP_RETURN_IF_ERROR(in_backward_ ? EnterRecompute(index) : EnterForward(index));
  return casts_.Inputs(units_.WrappedIndexOf(module), training_, inputs, tape);
}

// If the module that opened a pass is called again, it opens the next pass: the previous one has failed, because within
// a pass this module is never called, not even by a recomputation, which begins below its hooks.
absl::StatusOr<bool> Executor::OpensForward(const Module& module) const {
  if (&module == &root_) return true;
  if (!options_.passes_below_root && !in_pass_) {
    return absl::FailedPreconditionError(
        absl::StrCat("forward of ", units_.NameOf(module), " outside of a forward of the model: call the root's"));
  }
  if (!in_pass_ || &module == top_) return true;
  if (top_ == &root_ || below_.count(&module) != 0) return false;
  return absl::FailedPreconditionError(absl::StrCat("forward of ", units_.NameOf(module), " after a pass of ",
                                                    units_.NameOf(*top_),
                                                    " that failed: run a forward of that or of the root first"));
}

void Executor::SetTop(Module& module) {
  if (top_ == &module) return;
  top_ = &module;
  below_.clear();
  if (top_ == &root_) return;
  for (const auto& [name, below] : module.NamedModules()) below_.insert(below);
}

absl::Status Executor::BeginForward(Module& module, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckNotSummoned("forward"));
  if (&tape.stream() != &runtime_->compute_stream()) {
    return absl::FailedPreconditionError(
        "forward on a tape of another stream: make the tape with the model's NewTape()");
  }
  if (std::exchange(in_backward_, false) && runtime_->gradients().Discard()) {
    units_.AddWarning(
        "a backward failed: its gradients, and all others that no optimizer step has used, are discarded");
  }
  FSDP_RETURN_IF_ERROR(WriteBack());
  FSDP_RETURN_IF_ERROR(runtime_->FollowChanges(slots_));
  runner_->ReshardStale();
  training_ = tape.keep_for_backward();
  kept_.clear();
  ScheduleOptions pass = CurrentOptions();
  orders_.Begin();
  ForgetModulesRun();
  runtime_->WaitForOptimizer(std::exchange(post_optim_event_, Event()));
  runtime_->set_full_precision(!training_);
  for (int index = 0; index < units_.size(); ++index) {
    if (training_ || !units_.unit(index).settings.full_precision_in_eval) continue;
    // Its copy has another dtype than training's, so neither pass may leave one to the other.
    Reshard(index);
    pass.units[index].reshard_after_forward = true;
  }
  in_pass_ = true;
  SetTop(module);
  Schedule plan = ForwardSchedule(orders_.Forward(module), runner_->Gathered(), pass);
  return runner_->BeginPass(std::move(plan), std::move(pass));
}

absl::Status Executor::EnterForward(int index) {
  if (!units_.pass(index).modules_run.empty()) {
    orders_.Call(index);
    return absl::OkStatus();
  }
  if (order_check_.has_value() && training_ && units_.is_unit(index)) {
    std::string warning;
    FSDP_RETURN_IF_ERROR(order_check_->Enter(units_.unit(index).display_name(), &warning));
    if (!warning.empty()) units_.AddWarning(std::move(warning));
  }
  orders_.Enter(index);
  orders_.Call(index);
  FSDP_RETURN_IF_ERROR(runner_->EnterUnit({Kind::kForward, index}, Direction::kForward));
  BeginSpan("forward", index);
  return absl::OkStatus();
}

absl::Status Executor::PostForward(Module& module, absl::Span<Tensor> outputs, Tape& tape) {
  const int index = units_.ScheduledIndexOf(module);
  FSDP_RETURN_IF_ERROR(casts_.Outputs(units_.WrappedIndexOf(module), outputs, tape));
  if (in_backward_) return index >= 0 ? LeaveRecompute(index, module) : absl::OkStatus();
  const bool ends = &module == top_;
  if (ends) FSDP_RETURN_IF_ERROR(LeaveUnfinished(index));
  if (index >= 0) {
    std::set<const Module*>& modules_run = units_.pass(index).modules_run;
    modules_run.insert(&module);
    if (ends || RanAllModules(index, modules_run)) FSDP_RETURN_IF_ERROR(LeaveForward(index));
  }
  if (!ends) return absl::OkStatus();
  if (order_check_.has_value() && training_) {
    std::string warning;
    FSDP_RETURN_IF_ERROR(order_check_->EndForward(&warning));
    if (!warning.empty()) units_.AddWarning(std::move(warning));
  }
  EndForward();
  return absl::OkStatus();
}

absl::Status Executor::LeaveForward(int index) {
  EndSpan();
  units_.pass(index).modules_run.clear();
  orders_.Leave(index);
  return runner_->LeaveUnit(index, Direction::kForward);
}

// A unit of several modules is left when all have run, and entered again by a further call. So at the end of a forward
// it is still entered if some did not run, or not again: the program may call these next, as a head for each chunk of a
// loss. `last` is the unit of the module that ends the forward, and leaves after these.
absl::Status Executor::LeaveUnfinished(int last) {
  for (int index = 0; index < units_.num_scheduled(); ++index) {
    if (index != last && !units_.pass(index).modules_run.empty()) FSDP_RETURN_IF_ERROR(LeaveForward(index));
  }
  return absl::OkStatus();
}

// A unit whose forward runs again, because it is inside one that recomputes.
absl::Status Executor::EnterRecompute(int index) {
  if (!units_.pass(index).modules_rerun.empty()) return absl::OkStatus();
  return runner_->EnterUnit({Kind::kRecompute, index}, Direction::kRecompute);
}

absl::Status Executor::LeaveRecompute(int index, const Module& module) {
  PassState& pass = units_.pass(index);
  pass.modules_rerun.insert(&module);
  if (!RanAllModules(index, pass.modules_rerun)) return absl::OkStatus();
  pass.modules_rerun.clear();
  // A unit of several modules in several that recompute: its own backward has begun, and leaves it.
  if (pass.backwards_run > 0) return absl::OkStatus();
  return runner_->LeaveUnit(index, Direction::kRecompute);
}

void Executor::EndForward() {
  orders_.End(*top_, training_);
  in_pass_ = false;
  if (!training_) ReshardAfterEvaluation();
  for (int index = 0; index < units_.size(); ++index) {
    // Backward binds the parameters again that stay unsharded for it. Until then they are undefined, so that editing
    // them in between is an error and not a silent loss.
    for (const auto& parameter : units_.unit(index).parameters) parameter->data = Tensor();
  }
}

// No backward will reshard what the forward entered and did not leave, or gathered ahead and did not use.
void Executor::ReshardAfterEvaluation() {
  for (int index = 0; index < units_.size(); ++index) {
    const UnitTraits& unit = runner_->options().units[index];
    const bool gathered = units_.pass(index).gathered;
    if (!unit.sharded || (gathered && unit.reshard_after_forward)) {
      Reshard(index);
    } else if (gathered) {
      kept_.push_back(index);
    }
  }
}

absl::Status Executor::PreBackward(Module& module, absl::Span<Tensor> grad_outputs, Tape& tape) {
  const int index = units_.ScheduledIndexOf(module);
  FSDP_ASSIGN_OR_RETURN(const bool opens, OpensBackward(module));
  if (opens) FSDP_RETURN_IF_ERROR(BeginBackward(module));
  FSDP_RETURN_IF_ERROR(casts_.GradOutputs(units_.WrappedIndexOf(module), grad_outputs, tape));
  if (index < 0) return absl::OkStatus();
  if (units_.pass(index).backwards_run == 0) {
    units_.pass(index).modules_rerun.clear();
    const bool recompute = runner_->options().units[index].recompute;
    const ScheduleEvent compute{recompute ? Kind::kRecompute : Kind::kBackward, index};
    FSDP_RETURN_IF_ERROR(runner_->EnterUnit(compute, Direction::kBackward));
    if (recompute) runner_->AwaitBackward(index);
    BeginSpan("backward", index);
  }
  if (!units_.is_unit(index)) return absl::OkStatus();
  return runtime_->gradients().Bind(index, GradientReduction::SyncIf(runner_->options().units[index].sync));
}

absl::StatusOr<bool> Executor::OpensBackward(const Module& module) const {
  if (&module == &root_ || (in_backward_ && &module == top_)) return true;
  if (in_backward_) return false;
  if (orders_.HasEnded(module)) return true;
  return absl::FailedPreconditionError(
      absl::StrCat("backward of ", units_.NameOf(module), " outside of a backward of the model: call ",
                   options_.passes_below_root ? "backward of the module whose forward was called" : "the root's"));
}

absl::Status Executor::BeginBackward(Module& module) {
  FSDP_RETURN_IF_ERROR(CheckNotSummoned("backward"));
  if (in_backward_) {
    return absl::FailedPreconditionError("backward after one that failed: run a forward first");
  }
  in_pass_ = in_backward_ = true;
  // An evaluation may have run since the forward.
  training_ = true;
  runtime_->set_full_precision(false);
  kept_.clear();
  runner_->ReshardStale();
  ScheduleOptions pass = CurrentOptions();
  ForgetModulesRun();
  SetTop(module);
  Schedule plan = BackwardSchedule(orders_.Backward(module), runner_->Gathered(), pass);
  return runner_->BeginPass(std::move(plan), std::move(pass));
}

absl::Status Executor::PostBackward(Module& module, absl::Span<Tensor> grad_inputs, Tape& tape) {
  const int index = units_.ScheduledIndexOf(module);
  FSDP_RETURN_IF_ERROR(casts_.GradInputs(units_.WrappedIndexOf(module), grad_inputs, tape));
  if (index >= 0 && ++units_.pass(index).backwards_run == orders_.BackwardCalls(*top_, index)) {
    FSDP_RETURN_IF_ERROR(LeaveBackward(index));
  }
  if (&module != top_) return absl::OkStatus();
  // Units of several modules of which some have no backward.
  for (int other = 0; other < units_.size(); ++other) {
    if (units_.pass(other).backwards_run > 0) FSDP_RETURN_IF_ERROR(LeaveBackward(other));
  }
  return EndBackward();
}

absl::Status Executor::LeaveBackward(int index) {
  EndSpan();
  units_.pass(index).backwards_run = 0;
  if (units_.is_unit(index)) {
    runtime_->gradients().Unbind(index, GradientReduction::SyncIf(runner_->options().units[index].sync));
  }
  return runner_->LeaveUnit(index, Direction::kBackward);
}

bool Executor::RanAllModules(int index, const std::set<const Module*>& modules_run) const {
  return modules_run.size() == units_.ModulesOf(index).size();
}

void Executor::ForgetModulesRun() {
  for (int index = 0; index < units_.num_scheduled(); ++index) {
    PassState& pass = units_.pass(index);
    pass.modules_run.clear();
    pass.modules_rerun.clear();
    pass.backwards_run = 0;
  }
}

// Reshards the units that backward left unsharded: prefetched and not used, or without a backward. After a backward
// without synchronisation, units that are kept for the next forward stay unsharded.
absl::Status Executor::EndBackward() {
  FSDP_RETURN_IF_ERROR(runtime_->gradients().AgreeOnUse());
  in_pass_ = in_backward_ = false;
  if (!is_last_backward_) return absl::OkStatus();
  runtime_->gradients().WaitForReductions();
  for (int index = 0; index < units_.size(); ++index) {
    if (runner_->options().units[index].ReshardsAfterBackward()) Reshard(index);
  }
  return absl::OkStatus();
}

absl::Status Executor::Unshard(int index) {
  if (!in_pass_) runner_->ReshardStale();
  std::erase(kept_, index);  // from now on because the caller asks for it
  if (units_.pass(index).gathered) return absl::OkStatus();
  if (!in_pass_) runtime_->WaitForOptimizer(Event());
  return runner_->Unshard(index);
}

absl::Status Executor::WaitForUnshard(int index) { return runtime_->BindParameters(index); }

void Executor::Reshard(int index) { runner_->Reshard(index); }

Schedule Executor::PlanStep(int micro_steps) const {
  return StepSchedule(orders_.Forward(root_), micro_steps, CurrentOptions());
}

void Executor::BeginSpan(std::string_view pass, int index) {
  if (units_.trace() == nullptr) return;
  units_.trace()->Begin(runtime_->compute_stream(),
                        absl::StrCat(std::string(pass), " ", units_.ScheduledNames()[index]));
}

void Executor::EndSpan() {
  if (units_.trace() != nullptr) units_.trace()->End(runtime_->compute_stream());
}

}  // namespace fsdp
