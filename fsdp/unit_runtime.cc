// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit_runtime.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "tensor/ops.h"

namespace fsdp {
namespace {

Tensor ViewOf(const Tensor& flat, const FlatLayout::Entry& entry) {
  return flat.Slice({entry.offset, entry.offset + entry.shape.numel()}).View(entry.shape);
}

// True when `unit` computes on its shard itself: nothing to gather, nothing to cast.
bool ComputesOnShard(const Unit& unit, bool sharded) { return !sharded && unit.compute_dtype == unit.dtype; }

}  // namespace

UnitRuntime::UnitRuntime(const UnitStore& units, ProcessGroup& group)
    : units_(units),
      group_(group),
      ops_(group.device()->ops()),
      sharded_(units.strategy() != ShardingStrategy::kNoShard),
      factors_(GradientDivideFactors(group.size())),
      states_(units.size()) {}

UnitRuntime::~UnitRuntime() = default;

absl::StatusOr<std::unique_ptr<UnitRuntime>> UnitRuntime::Create(const UnitStore& units, ProcessGroup& group,
                                                                 const SlotCounts& slots) {
  std::unique_ptr<UnitRuntime> runtime(new UnitRuntime(units, group));
  Device& device = *group.device();
  ASSIGN_OR_RETURN(runtime->compute_, device.CreateStream("compute"));
  ASSIGN_OR_RETURN(runtime->unshard_, device.CreateStream("unshard"));
  ASSIGN_OR_RETURN(runtime->post_backward_, device.CreateStream("post_backward"));
  RETURN_IF_ERROR(AgreeOn(group, runtime->Allocate(slots)));
  return runtime;
}

absl::Status UnitRuntime::Allocate(const SlotCounts& slots) {
  int64_t root_bytes = 0, slot_bytes = 0, root_unsharded_bytes = 0, slot_unsharded_bytes = 0, reduce_bytes = 0;
  for (int u = 0; u < units_.size(); ++u) {
    const Unit& unit = units_.unit(u);
    const int64_t padded = unit.layout.padded_numel();
    const int64_t nbytes = padded * SizeOf(unit.compute_dtype);
    const bool root = u == units_.root_unit();
    int64_t& grad_most = root ? root_bytes : slot_bytes;
    int64_t& unsharded_most = root ? root_unsharded_bytes : slot_unsharded_bytes;
    grad_most = std::max(grad_most, nbytes);
    if (!ComputesOnShard(unit, sharded_)) unsharded_most = std::max(unsharded_most, nbytes);
    if (unit.reduce_dtype != unit.compute_dtype) {
      reduce_bytes = std::max(reduce_bytes, padded * SizeOf(unit.reduce_dtype));
    }
  }
  if (root_unsharded_bytes > 0) {
    ASSIGN_OR_RETURN(root_unsharded_, SlotPool::Create(group_, 1, root_unsharded_bytes, "the root's parameters"));
  }
  if (slot_unsharded_bytes > 0) {
    ASSIGN_OR_RETURN(unsharded_,
                     SlotPool::Create(group_, slots.unsharded, slot_unsharded_bytes, "unsharded parameters"));
  }
  ASSIGN_OR_RETURN(root_gradients_, SlotPool::Create(group_, 1, root_bytes, "the root's gradients"));
  ASSIGN_OR_RETURN(gradients_, SlotPool::Create(group_, slots.gradients, slot_bytes, "unsharded gradients"));
  ASSIGN_OR_RETURN(reduce_buffer_, group_.Allocate(reduce_bytes));
  return absl::OkStatus();
}

Interval UnitRuntime::OwnShard(int unit) const {
  const int64_t numel = units_.unit(unit).layout.shard_numel();
  const int rank = units_.shard_rank(group_);
  return {rank * numel, (rank + 1) * numel};
}

absl::Status UnitRuntime::Unshard(int u) {
  const Unit& unit = units_.unit(u);
  State& state = states_[u];
  if (ComputesOnShard(unit, sharded_)) {
    state.unsharded = unit.shard;
    state.gathered = Event();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(Buffer buffer, UnshardedPool(u).Acquire(*unshard_));
  state.unsharded = Tensor(std::move(buffer), unit.compute_dtype, PaddedShape(u));
  const Tensor own = state.unsharded.Slice(OwnShard(u));
  const bool cast = unit.compute_dtype != unit.dtype;
  if (cast) ops_.CastDivide(unit.shard, own, 1, *unshard_);
  if (sharded_) group_.AllGather(cast ? own : unit.shard, state.unsharded, *unshard_);
  state.gathered = unshard_->Record();
  return absl::OkStatus();
}

absl::Status UnitRuntime::BindParameters(int u) {
  const Unit& unit = units_.unit(u);
  State& state = states_[u];
  if (!state.unsharded.defined()) RETURN_IF_ERROR(Unshard(u));  // kNoShard schedules no all-gather
  compute_->Wait(state.gathered);
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    unit.parameters[i]->data = ViewOf(state.unsharded, unit.layout.parameters()[i]);
  }
  return absl::OkStatus();
}

void UnitRuntime::Reshard(int u) {
  const Unit& unit = units_.unit(u);
  State& state = states_[u];
  if (!state.unsharded.defined()) return;
  for (const auto& parameter : unit.parameters) parameter->data = Tensor();
  if (!ComputesOnShard(unit, sharded_)) {
    // A prefetched unit that was never computed is still being gathered: its slot is free after both.
    compute_->Wait(state.gathered);
    UnshardedPool(u).Release(state.unsharded.buffer(), compute_->Record());
  }
  state.unsharded = Tensor();
}

absl::Status UnitRuntime::BindGradients(int u, bool sync) {
  const Unit& unit = units_.unit(u);
  State& state = states_[u];
  const int64_t nbytes = unit.layout.padded_numel() * SizeOf(unit.compute_dtype);
  if (!sync && !state.accumulated.defined()) {
    ASSIGN_OR_RETURN(Buffer buffer, group_.Allocate(nbytes));
    state.accumulated = Tensor(std::move(buffer), unit.compute_dtype, PaddedShape(u));
  }
  if (!sync || state.has_accumulated) {
    state.grad = state.accumulated;
  } else {
    ASSIGN_OR_RETURN(Buffer buffer, GradientPool(u).Acquire(*compute_));
    state.grad = Tensor(std::move(buffer), unit.compute_dtype, PaddedShape(u));
  }
  if (!state.has_accumulated) ops_.Zero(state.grad, *compute_);
  if (!sync) state.has_accumulated = true;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    unit.parameters[i]->grad = ViewOf(state.grad, unit.layout.parameters()[i]);
  }
  return absl::OkStatus();
}

void UnitRuntime::UnbindGradients(int u) {
  for (const auto& parameter : units_.unit(u).parameters) parameter->grad = Tensor();
}

absl::Status UnitRuntime::Reduce(int u) {
  const Unit& unit = units_.unit(u);
  State& state = states_[u];
  if (!state.grad.defined()) {
    return absl::FailedPreconditionError("unit " + unit.display_name() + ": no gradient to reduce");
  }
  post_backward_->Wait(compute_->Record());
  Tensor input = state.grad;
  if (unit.reduce_dtype != unit.compute_dtype) {
    const int64_t nbytes = input.numel() * SizeOf(unit.reduce_dtype);
    input = Tensor(reduce_buffer_.Slice(0, nbytes), unit.reduce_dtype, PaddedShape(u));
  }
  if (unit.reduce_dtype != unit.compute_dtype || factors_.pre != 1) {
    ops_.CastDivide(state.grad, input, factors_.pre, *post_backward_);
  }
  const Tensor reduced = input.Slice(OwnShard(u));
  if (sharded_) {
    group_.ReduceScatter(input, reduced, ReduceOp::kSum, *post_backward_);
  } else {
    group_.AllReduce(input, ReduceOp::kSum, *post_backward_);
  }
  RETURN_IF_ERROR(StoreReduced(u, reduced));
  if (state.has_accumulated) {
    state.has_accumulated = false;
    // The next backward that writes to it is ordered after this reduction.
    compute_->Wait(post_backward_->Record());
  } else {
    GradientPool(u).Release(state.grad.buffer(), post_backward_->Record());
  }
  state.grad = Tensor();
  return absl::OkStatus();
}

absl::Status UnitRuntime::StoreReduced(int u, const Tensor& reduced) {
  const Unit& unit = units_.unit(u);
  const auto& parameters = unit.sharded_parameters;
  const bool accumulate = std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p->has_grad; });
  if (!accumulate) {
    ops_.CastDivide(reduced, unit.grad_shard, factors_.post, *post_backward_);
  } else {
    for (const auto& parameter : parameters) {
      if (!parameter->has_grad) ops_.Zero(parameter->grad, *post_backward_);
    }
    ops_.CastDivide(reduced, reduced, factors_.post, *post_backward_);
    ops_.Accumulate(reduced, unit.grad_shard, *post_backward_);
  }
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i]->has_grad = unit.parameters[i]->requires_grad;
  return absl::OkStatus();
}

absl::Status UnitRuntime::Synchronize() {
  absl::Status first;
  for (Stream* stream : {compute_.get(), unshard_.get(), post_backward_.get()}) first.Update(stream->Synchronize());
  return first;
}

}  // namespace fsdp
