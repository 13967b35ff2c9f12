// SPDX-License-Identifier: Apache-2.0
//
// One backward of a unit, from the gradient that layers write, to the gradient that the optimizer reads:
//
//   grad --pre-divide, cast, rows--> staging --reduce-scatter--> reduced --all-reduce--> (hook) --post-divide--> shard
//
// The divisions are the unit's ReductionRule. A step that changes nothing is left out: without cast, rows and a custom
// ReduceScatterComm, the collective reads `grad` in place; only hybrid units (sharded and replicated) have both
// collectives. The shard group comes first, so that the all-reduce over the replicate group moves only a shard of the
// bytes. The order is fixed, so every run adds each element in the same order.
//
// The place of a gradient between passes, by the switch that is off:
//
//   requires_gradient_sync  GradientState::accumulated  whole and not reduced. Backward adds straight to it, except if
//                                                       FSDP2 reduces in another dtype: there its gradient is added
//                                                       afterwards, unless it was widened
//   requires_all_reduce     GradientState::partial      reduced over the shard group, not yet over the replicate group
//   neither                 Unit::grad_shard            reduced; a second backward before ZeroGrad adds (has_grad)
//
// Memory is shared, so its users are ordered by events: staging (inputs_) by InputBuffer::free, gradient slots by their
// SlotPool. `reduced` is a part of staging or of `grad`, so both stay taken until Store has read it. Host code never
// waits here; WaitForReductions makes the compute stream wait before the optimizer.
//
// With one staging buffer the copy to it waits for the reduction before, on the same stream, and backward for the slot
// of that copy. With several (set_reduce_scatter_max_input_buffers) the compute stream copies, so that backward waits
// only for the reduction that many units before.
#include "fsdp/fsdp/units/gradient_reduction.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/row_copy.h"
#include "fsdp/fsdp/units/unit_windows.h"
#include "fsdp/fsdp/units/unwritten_gradient.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/trace.h"

namespace fsdp {

GradientReduction::GradientReduction(const UnitStore& units, const MemoryPlan& plan, UnitStreams& streams)
    : units_(units),
      plan_(plan),
      ops_(units.device().ops()),
      compute_(*streams.compute),
      post_backward_(*streams.post_backward),
      all_reduce_(*streams.all_reduce),
      memory_(SlotGroup(units)),
      use_(units) {}

GradientReduction::~GradientReduction() = default;

absl::StatusOr<std::unique_ptr<GradientReduction>> GradientReduction::Create(const UnitStore& units,
                                                                             const MemoryPlan& plan,
                                                                             UnitStreams& streams) {
  std::unique_ptr<GradientReduction> made(new GradientReduction(units, plan, streams));
  FSDP_RETURN_IF_ERROR(units.groups().AllReduceStatus(made->Allocate()));
  return made;
}

absl::Status GradientReduction::FollowPlan() {
  const bool enough = gradients_.Suffices(plan_.slots.gradients, plan_.gradient_slot) &&
                      (plan_.root_gradients == 0 || root_gradients_.Suffices(1, plan_.root_gradients)) &&
                      static_cast<int>(inputs_.size()) == plan_.reduce_inputs &&
                      inputs_[0].memory.nbytes() >= plan_.reduce_staging &&
                      store_.staging_bytes() >= plan_.download_staging && GroupsSuffice();
  return enough ? absl::OkStatus() : Allocate();
}

absl::Status GradientReduction::SetCommHook(CommHook hook) {
  if (!hook) return absl::InvalidArgumentError("communication hook: expected a function, got none");
  if (hook_) return absl::FailedPreconditionError("communication hook: one is registered already");
  if (bound_) {
    return absl::FailedPreconditionError(
        "communication hook: registered after a backward, whose gradients it did not reduce; register it before the "
        "first");
  }
  for (const auto& unit : units_.units()) {
    if (unit->sharded() && unit->groups.replicate != nullptr) {
      return absl::FailedPreconditionError("communication hook: unit " + unit->display_name() +
                                           " is hybrid, for which hooks are not supported");
    }
  }
  hook_ = std::move(hook);
  return absl::OkStatus();
}

ReductionRule GradientReduction::RuleOf(const Unit& unit) const {
  if (hook_) return {};
  if (unit.settings.gradient_rules == GradientRules::kFsdp1) {
    return Fsdp1ReductionRule(unit.groups.data_parallel_size());
  }
  return Fsdp2ReductionRule({.shard_size = unit.groups.shard_world_size(),
                             .replicas = unit.groups.replicate ? unit.groups.replicate->size() : 1,
                             .reduce_dtype = unit.reduce_dtype,
                             .divide_factor = unit.controls.gradient_divide_factor,
                             .force_sum = unit.controls.force_sum_reduction});
}

// The buffer of gradients that stay local, allocated by the first backward without synchronisation.
absl::StatusOr<Tensor> GradientReduction::Accumulated(int index) {
  Unit& unit = units_.unit(index);
  GradientState& state = unit.state.gradients;
  if (!state.accumulated.defined()) {
    const DType dtype = unit.accumulates_in_reduce_dtype() ? unit.reduce_dtype : unit.compute_dtype;
    const Shape padded{unit.grad_layout.padded_numel()};
    FSDP_ASSIGN_OR_RETURN(Buffer buffer, units_.groups().any().Allocate(padded.numel() * SizeOf(dtype)));
    state.accumulated = Tensor(std::move(buffer), dtype, padded);
  }
  return state.accumulated;
}

// True if backward adds to a gradient of another dtype than `accumulated`, which is added to `accumulated` after the
// backward.
bool GradientReduction::AddsAfterwards(int index) const {
  return units_.unit(index).accumulates_in_reduce_dtype() && !units_.unit(index).state.gradients.wide;
}

// Adds the gradient in its slot to `accumulated`, and gives the slot back.
absl::Status GradientReduction::MoveToAccumulated(int index) {
  GradientState& state = units_.unit(index).state.gradients;
  FSDP_ASSIGN_OR_RETURN(const Tensor accumulated, Accumulated(index));
  if (state.has_accumulated) {
    ops_.Accumulate(state.grad, accumulated, compute_);
  } else {
    ops_.CastDivide(state.grad, accumulated, 1, compute_);
  }
  state.has_accumulated = true;
  PoolOf(index).Release(state.grad.buffer(), compute_.Record());
  state.grad = Tensor();
  return absl::OkStatus();
}

void GradientReduction::BindViews(int index) {
  const Unit& unit = units_.unit(index);
  const Tensor& grad = unit.state.gradients.grad;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const ShardLayout::Entry& entry = unit.grad_layout.parameters()[i];
    if (entry.shape != unit.parameters[i]->shape) continue;  // frozen, and without a place
    unit.parameters[i]->grad = grad.Slice({entry.offset, entry.offset + entry.shape.numel()}).View(entry.shape);
  }
}

absl::Status GradientReduction::BindPart(int index, Sync sync) {
  Unit& unit = units_.unit(index);
  GradientState& state = unit.state.gradients;
  if (!unit.trainable()) return absl::OkStatus();
  if (!unit.grad_shard.defined()) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit ", unit.display_name(),
                     " has no memory for gradients, since all of it was frozen when the forward began; set "
                     "requires_grad before the forward"));
  }
  bound_ = true;
  if (!state.grad.defined()) {
    for (const auto& parameter : unit.parameters) parameter->grad_used = false;
    // Backward adds straight to the accumulated gradient if that has the dtype that backward computes in.
    const bool in_place = state.wide || ((sync == Sync::kKeepLocal || state.has_accumulated) && !AddsAfterwards(index));
    if (in_place) {
      FSDP_ASSIGN_OR_RETURN(state.grad, Accumulated(index));
    } else {
      FSDP_ASSIGN_OR_RETURN(Buffer buffer, PoolOf(index).Acquire(compute_, unit.display_name()));
      state.grad = Tensor(std::move(buffer), unit.compute_dtype, {unit.grad_layout.padded_numel()});
    }
    if (!in_place || !state.has_accumulated) BeginGradient(unit, compute_);
    if (in_place) state.has_accumulated = true;
  }
  BindViews(index);
  return absl::OkStatus();
}

absl::Status GradientReduction::WidenPart(int index) {
  GradientState& state = units_.unit(index).state.gradients;
  if (!AddsAfterwards(index) || hook_) return absl::OkStatus();
  if (state.grad.defined()) {
    fsdp::ZeroUnwritten(units_.unit(index), compute_);
    FSDP_RETURN_IF_ERROR(MoveToAccumulated(index));
    state.grad = state.accumulated;
    BindViews(index);
  }
  state.wide = true;
  return absl::OkStatus();
}

void GradientReduction::UnbindPart(int index, Sync sync) {
  Unit& unit = units_.unit(index);
  GradientState& state = unit.state.gradients;
  if (state.grad.defined()) use_.MarkUsed(index);
  fsdp::ZeroUnwritten(unit, compute_);
  for (const auto& parameter : unit.parameters) parameter->grad = Tensor();
  if (sync == Sync::kReduce || !state.grad.defined()) return;
  if (AddsAfterwards(index)) {
    const absl::Status moved = MoveToAccumulated(index);
    if (!moved.ok()) compute_.Run([moved] { return moved; });
    return;
  }
  state.grad = Tensor();
}

// The gradient as the collectives read it: in the reduce dtype, divided, in the order of the ranks' shards. A gradient
// that is copied to staging gives its slot back here, so the next unit's backward may use the slot during the
// collective.
absl::StatusOr<Tensor> GradientReduction::Start(int index) {
  Unit& unit = units_.unit(index);
  GradientState& state = unit.state.gradients;
  if (!state.grad.defined()) {
    return absl::FailedPreconditionError("unit " + unit.display_name() + ": no gradient to reduce");
  }
  const double pre = RuleOf(unit).pre;
  const bool custom = has_custom_input(unit);
  Stream& copies = inputs_.size() > 1 && !custom ? compute_ : post_backward_;
  post_backward_.Wait(compute_.Record());
  Tensor source = state.grad;
  if (state.has_accumulated && AddsAfterwards(index)) {
    ops_.Accumulate(state.grad, state.accumulated, copies);
    source = state.accumulated;
  }
  const bool cast = source.dtype() != unit.reduce_dtype && !(hook_ && hook_.low_precision);
  const bool in_place = unit.grad_layout.in_place() && !cast && !custom;
  Tensor input = source;
  if (!in_place) {
    FSDP_ASSIGN_OR_RETURN(input, StagingOf(index, copies));
  }
  if (!unit.grad_layout.in_place()) {
    RowCopy(unit.grad_layout).In(source, input, pre, ops_, copies);
  } else if (!in_place || pre != 1) {
    ops_.CastDivide(source, input, pre, copies);
  }
  if (!in_place) Release(index, copies);
  if (&copies == &compute_) post_backward_.Wait(compute_.Record());
  return input;
}

// Gives the gradient that backward wrote back to its slot. `last_user` is the stream whose work so far is the last to
// read it.
void GradientReduction::Release(int index, Stream& last_user) {
  GradientState& state = units_.unit(index).state.gradients;
  if (!state.grad.defined()) return;
  const bool from_slot = !state.has_accumulated || AddsAfterwards(index);
  if (from_slot) PoolOf(index).Release(state.grad.buffer(), last_user.Record());
  // The accumulated gradient is in no slot, so no SlotPool orders the next backward after this reduction.
  if (state.has_accumulated) compute_.Wait(last_user.Record());
  state.has_accumulated = false;
  state.grad = Tensor();
}

// Sums `input` over the shard group; `own` is this rank's part of it. A reduce-scatter gives equal parts and packed
// ones are unequal, so all ranks get the sum of all of them.
absl::Status GradientReduction::SumOverShards(const Unit& unit, const Tensor& input, const Tensor& own) {
  ProcessGroup& group = *unit.reduce_scatter_group();
  const ReduceOp op = RuleOf(unit).reduce_scatter;
  const bool packed = unit.grad_layout.is_packed();
  if (hook_) return hook_.reduce(input, packed ? Tensor() : own, group, post_backward_);
  if (packed) {
    group.AllReduce(input, op, post_backward_);
  } else if (unit.controls.reduce_scatter != nullptr) {
    unit.controls.reduce_scatter->ReduceScatter(input, own, op, group, post_backward_);
  } else {
    group.ReduceScatter(input, own, op, post_backward_);
  }
  return absl::OkStatus();
}

absl::Status GradientReduction::ReduceScatterPart(int index) {
  const Unit& unit = units_.unit(index);
  FSDP_ASSIGN_OR_RETURN(const Tensor input, Start(index));
  const TraceScope span(units_.trace(), post_backward_, [&] { return "reduce_scatter " + unit.display_name(); });
  const Tensor reduced = input.Slice(unit.own_part(unit.grad_layout));
  FSDP_RETURN_IF_ERROR(SumOverShards(unit, input, reduced));
  if (unit.groups.replicate == nullptr) return Store(index, reduced, post_backward_);
  if (!unit.controls.requires_all_reduce) return KeepPartial(index, reduced);
  units_.unit(index).state.gradients.reduced = reduced;
  return absl::OkStatus();
}

// Adds a sum over the shard group to the sums of earlier backwards, instead of all-reducing it.
absl::Status GradientReduction::KeepPartial(int index, const Tensor& reduced) {
  GradientState& state = units_.unit(index).state.gradients;
  if (!state.partial.defined()) {
    FSDP_ASSIGN_OR_RETURN(Buffer buffer, units_.groups().any().Allocate(reduced.nbytes()));
    state.partial = Tensor(std::move(buffer), reduced.dtype(), reduced.shape());
  }
  if (state.has_partial) {
    ops_.Accumulate(reduced, state.partial, post_backward_);
  } else {
    ops_.CastDivide(reduced, state.partial, 1, post_backward_);
  }
  state.has_partial = true;
  MarkReduced(post_backward_);
  Release(index, post_backward_);
  return absl::OkStatus();
}

absl::Status GradientReduction::AllReducePart(int index) {
  Unit& unit = units_.unit(index);
  GradientState& state = unit.state.gradients;
  Stream& stream = unit.sharded() ? all_reduce_ : post_backward_;
  Tensor reduced = std::exchange(state.reduced, Tensor());
  if (unit.sharded()) {
    stream.Wait(post_backward_.Record());
  } else {
    FSDP_ASSIGN_OR_RETURN(reduced, Start(index));
  }
  const TraceScope span(units_.trace(), stream, [&] { return "all_reduce " + unit.display_name(); });
  if (state.has_partial) ops_.Accumulate(state.partial, reduced, stream);
  state.has_partial = false;
  ProcessGroup& group = *unit.groups.replicate;
  if (hook_) {
    FSDP_RETURN_IF_ERROR(hook_.reduce(reduced, Tensor(), group, stream));
  } else {
    group.AllReduce(reduced, RuleOf(unit).all_reduce, stream);
  }
  return Store(index, reduced, stream);
}

absl::Status GradientReduction::StoreLocalPart(int index) {
  FSDP_ASSIGN_OR_RETURN(const Tensor reduced, Start(index));
  return Store(index, reduced, post_backward_);
}

// The end of a reduction: `reduced` becomes this rank's gradient.
absl::Status GradientReduction::Store(int index, const Tensor& reduced, Stream& stream) {
  const Unit& unit = units_.unit(index);
  if (unit.controls.all_reduce_hook) {
    Stream* const own = unit.controls.all_reduce_hook_stream;
    Stream& on = own != nullptr ? *own : stream;
    if (own != nullptr) own->Wait(stream.Record());
    FSDP_RETURN_IF_ERROR(unit.controls.all_reduce_hook(reduced, on));
    if (own != nullptr) stream.Wait(own->Record());
  }
  store_.Store(unit, reduced, RuleOf(unit).post, stream);
  use_.MarkStored(index);
  MarkReduced(stream);
  Release(index, stream);
  return absl::OkStatus();
}

bool GradientReduction::Discard() {
  WaitForReductions();  // what they read is given back below
  bool any = false;
  for (int index = 0; index < units_.size(); ++index) {
    GradientState& state = units_.unit(index).state.gradients;
    any |= state.grad.defined() || state.has_accumulated || state.has_partial;
    for (const auto& parameter : units_.unit(index).parameters) parameter->grad = Tensor();
    ForgetGradient(units_.unit(index));
    Release(index, compute_);
    state.reduced = Tensor();
    state.has_accumulated = state.has_partial = false;
  }
  return use_.Discard() || any;
}

void GradientReduction::WaitForReductions() {
  compute_.Wait(post_backward_.Record());
  compute_.Wait(all_reduce_.Record());
}

}  // namespace fsdp
