// SPDX-License-Identifier: Apache-2.0
#include "fsdp/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fsdp/writeback.h"
#include "tensor/ops.h"

namespace fsdp {
namespace {

using Kind = ScheduleEvent::Kind;

bool IsCompute(const ScheduleEvent& event) { return event.kind == Kind::kForward || event.kind == Kind::kBackward; }

// A float tensor in another dtype, through the tape's stream; others as they are.
absl::StatusOr<Tensor> CastTo(DType dtype, const Tensor& t, Tape& tape) {
  if (!t.defined() || !IsFloatingPoint(t.dtype()) || t.dtype() == dtype) return t;
  ASSIGN_OR_RETURN(Tensor cast, tape.Empty(dtype, t.shape()));
  tape.device().ops().CastDivide(t, cast, 1, tape.stream());
  return cast;
}

// Memory that a step in this order needs. One gradient slot more than units that are in backward at one time, so that a
// reduction overlaps the next unit's backward.
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

Executor::Executor(Module& root, const UnitStore& units, const FsdpOptions& options)
    : root_(root), units_(units), expected_(units.registration_order()), unsharded_(units.size(), false) {
  for (int u = 0; u < units.size(); ++u) {
    schedule_options_.units.push_back(UnitTraits::Of(units.unit(u).strategy, u == units.root_unit()));
    schedule_options_.units.back().trainable = units.unit(u).trainable();
  }
  schedule_options_.backward_prefetch = options.backward_prefetch;
  schedule_options_.forward_prefetch = options.forward_prefetch;
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(Module& root, const UnitStore& units,
                                                           const FsdpOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(root, units, options));
  const SlotCounts slots =
      CountSlots(executor->expected_, units, executor->schedule_options_, options.limit_all_gathers);
  ASSIGN_OR_RETURN(executor->runtime_, UnitRuntime::Create(units, slots));
  root.set_hooks(executor.get());
  for (const auto& unit : units.units()) unit->module->set_hooks(executor.get());
  return executor;
}

Executor::~Executor() {
  for (const auto& unit : units_.units()) unit->module->set_hooks(nullptr);
  root_.set_hooks(nullptr);
}

absl::Status Executor::CheckIdle(std::string_view call) {
  if (in_pass_) {
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(call), " within a forward or backward: call it between them"));
  }
  RETURN_IF_ERROR(WriteBackReplaced(units_, runtime_->compute_stream()));
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
  const int unit = units_.IndexOf(module);
  if (&module == &root_) {
    RETURN_IF_ERROR(CheckNotSummoned("forward"));
    RETURN_IF_ERROR(WriteBackReplaced(units_, runtime_->compute_stream()));
    schedule_options_.training = tape.keep_for_backward();
    visits_.clear();
    runtime_->WaitForOptimizer();
    BeginPass(ForwardSchedule(expected_, unsharded_, schedule_options_));
    if (units_.size() > 0 && input.defined()) {
      input_dtype_ = input.dtype();
      ASSIGN_OR_RETURN(input, CastTo(units_.unit(0).compute_dtype, input, tape));
    }
  } else if (!in_pass_) {
    return absl::FailedPreconditionError(absl::StrCat("forward of unit ", units_.unit(unit).display_name(),
                                                      " outside of a forward of the model: call the root's"));
  }
  if (unit < 0) return absl::OkStatus();
  visits_.push_back({unit, /*enter=*/true});
  return EnterUnit({Kind::kForward, unit}, ForwardSchedule({visits_.back()}, unsharded_, schedule_options_));
}

absl::Status Executor::PostForward(Module& module, Tensor& /*output*/, Tape& tape) {
  const int unit = units_.IndexOf(module);
  if (unit >= 0) {
    visits_.push_back({unit, /*enter=*/false});
    RETURN_IF_ERROR(LeaveUnit(unit, ForwardSchedule({visits_.back()}, unsharded_, schedule_options_)));
  }
  if (&module != &root_) return absl::OkStatus();
  expected_ = visits_;
  in_pass_ = false;
  if (!tape.keep_for_backward()) EndPass();
  return absl::OkStatus();
}

absl::Status Executor::PreBackward(Module& module, Tensor& grad_output, Tape& tape) {
  const int unit = units_.IndexOf(module);
  if (&module == &root_) {
    RETURN_IF_ERROR(CheckNotSummoned("backward"));
    BeginPass(BackwardSchedule(visits_, unsharded_, sync_, schedule_options_));
    if (units_.size() > 0) {
      ASSIGN_OR_RETURN(grad_output, CastTo(units_.unit(0).compute_dtype, grad_output, tape));
    }
  } else if (!in_pass_) {
    return absl::FailedPreconditionError(absl::StrCat("backward of unit ", units_.unit(unit).display_name(),
                                                      " outside of a backward of the model: call the root's"));
  }
  if (unit < 0) return absl::OkStatus();
  // The reverse of having left the unit in forward.
  const UnitVisit reversed{unit, /*enter=*/false};
  RETURN_IF_ERROR(
      EnterUnit({Kind::kBackward, unit}, BackwardSchedule({reversed}, unsharded_, sync_, schedule_options_)));
  return runtime_->BindGradients(unit, sync_);
}

absl::Status Executor::PostBackward(Module& module, Tensor& grad_input, Tape& tape) {
  const int unit = units_.IndexOf(module);
  if (unit >= 0) {
    runtime_->UnbindGradients(unit);
    const UnitVisit reversed{unit, /*enter=*/true};
    RETURN_IF_ERROR(LeaveUnit(unit, BackwardSchedule({reversed}, unsharded_, sync_, schedule_options_)));
  }
  if (&module != &root_) return absl::OkStatus();
  ASSIGN_OR_RETURN(grad_input, CastTo(input_dtype_, grad_input, tape));
  in_pass_ = false;
  if (sync_) runtime_->WaitForReductions();
  EndBackward();
  return absl::OkStatus();
}

void Executor::BeginPass(Schedule plan) {
  plan_ = std::move(plan);
  next_ = 0;
  following_ = true;
  in_pass_ = true;
}

// Runs the plan through `compute` if that is its next computation; otherwise leaves the plan for the rest of the pass.
absl::Status Executor::EnterUnit(const ScheduleEvent& compute, const Schedule& on_demand) {
  const auto planned = std::find_if(plan_.begin() + next_, plan_.end(), IsCompute);
  if (following_ && planned != plan_.end() && *planned == compute) {
    return RunUntil(planned - plan_.begin() + 1);
  }
  following_ = false;
  for (const ScheduleEvent& event : on_demand) RETURN_IF_ERROR(Run(event));
  return absl::OkStatus();
}

// Runs what the plan has for `unit`, and before it, up to the next computation.
absl::Status Executor::LeaveUnit(int unit, const Schedule& on_demand) {
  if (following_) {
    size_t end = next_;
    for (size_t i = next_; i < plan_.size() && !IsCompute(plan_[i]); ++i) {
      if (plan_[i].unit == unit) end = i + 1;
    }
    return RunUntil(end);
  }
  for (const ScheduleEvent& event : on_demand) RETURN_IF_ERROR(Run(event));
  return absl::OkStatus();
}

absl::Status Executor::RunUntil(size_t end) {
  while (next_ < end) RETURN_IF_ERROR(Run(plan_[next_++]));
  return absl::OkStatus();
}

absl::Status Executor::Run(const ScheduleEvent& event) {
  switch (event.kind) {
    case Kind::kAllGather:
      unsharded_[event.unit] = true;
      return runtime_->Unshard(event.unit);
    case Kind::kForward:
    case Kind::kBackward:
      return runtime_->BindParameters(event.unit);
    case Kind::kReshard:
      Reshard(event.unit);
      return absl::OkStatus();
    case Kind::kReduceScatter:
      return runtime_->ReduceScatter(event.unit);
    case Kind::kAllReduce:
      return runtime_->AllReduce(event.unit);
    case Kind::kStep:
      return absl::OkStatus();
  }
  return absl::InternalError("unknown schedule event");
}

// Reshards what a pass left unsharded: units that were prefetched and not used, or whose backward never came.
void Executor::EndPass() {
  for (int unit = 0; unit < units_.size(); ++unit) Reshard(unit);
}

// As EndPass, but without synchronisation units that are kept for the next forward stay.
void Executor::EndBackward() {
  for (int unit = 0; unit < units_.size(); ++unit) {
    if (sync_ || schedule_options_.units[unit].reshard_after_backward) Reshard(unit);
  }
}

void Executor::Reshard(int unit) {
  runtime_->Reshard(unit);
  unsharded_[unit] = false;
}

Schedule Executor::PlanStep(int micro_steps) const {
  ScheduleOptions options = schedule_options_;
  options.training = true;
  return StepSchedule(expected_, micro_steps, options);
}

}  // namespace fsdp
