// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit_runtime.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "tensor/ops.h"

namespace fsdp {
namespace {

Tensor ViewOf(const Tensor& flat, const ShardLayout::Entry& entry) {
  return flat.Slice({entry.offset, entry.offset + entry.shape.numel()}).View(entry.shape);
}

// True when `unit` computes on its shard itself: nothing to gather, nothing to cast.
bool ComputesOnShard(const Unit& unit) { return !unit.sharded() && unit.compute_dtype == unit.dtype; }

// True when the gradient that the reduction reads is not the one that backward writes.
bool StagesReduction(const Unit& unit) { return unit.reduce_dtype != unit.compute_dtype || !unit.layout.in_place(); }

Interval OwnShard(const Unit& unit) {
  const int64_t numel = unit.layout.shard_numel();
  const int rank = unit.groups.shard_rank();
  return {rank * numel, (rank + 1) * numel};
}

DivideFactors FactorsOf(const Unit& unit) { return GradientDivideFactors(unit.groups.data_parallel_size()); }

}  // namespace

UnitRuntime::UnitRuntime(const UnitStore& units) : units_(units), ops_(units.device().ops()), states_(units.size()) {}

UnitRuntime::~UnitRuntime() = default;

absl::StatusOr<std::unique_ptr<UnitRuntime>> UnitRuntime::Create(const UnitStore& units, const SlotCounts& slots) {
  std::unique_ptr<UnitRuntime> runtime(new UnitRuntime(units));
  Device& device = units.device();
  ASSIGN_OR_RETURN(runtime->compute_, device.CreateStream("compute"));
  ASSIGN_OR_RETURN(runtime->unshard_, device.CreateStream("unshard"));
  ASSIGN_OR_RETURN(runtime->post_backward_, device.CreateStream("post_backward"));
  ASSIGN_OR_RETURN(runtime->all_reduce_, device.CreateStream("all_reduce"));
  RETURN_IF_ERROR(units.groups().AgreeOn(runtime->Allocate(slots)));
  return runtime;
}

absl::Status UnitRuntime::Allocate(const SlotCounts& slots) {
  // Most bytes that a unit needs, of the root and of the others.
  struct Most {
    int64_t unsharded = 0, gradients = 0;
  } root, others;
  int64_t gather_bytes = 0, reduce_bytes = 0;
  for (int u = 0; u < units_.size(); ++u) {
    const Unit& unit = units_.unit(u);
    const int64_t padded = unit.layout.padded_numel();
    const int64_t nbytes = padded * SizeOf(unit.compute_dtype);
    Most& most = u == units_.root_unit() ? root : others;
    most.gradients = std::max(most.gradients, nbytes);
    if (!ComputesOnShard(unit)) most.unsharded = std::max(most.unsharded, nbytes);
    if (!unit.layout.in_place()) gather_bytes = std::max(gather_bytes, nbytes);
    if (StagesReduction(unit)) reduce_bytes = std::max(reduce_bytes, padded * SizeOf(unit.reduce_dtype));
  }
  ProcessGroup& memory = units_.groups().any();
  if (root.unsharded > 0) {
    ASSIGN_OR_RETURN(root_unsharded_, SlotPool::Create(memory, 1, root.unsharded, "the root's parameters"));
  }
  if (others.unsharded > 0) {
    ASSIGN_OR_RETURN(unsharded_, SlotPool::Create(memory, slots.unsharded, others.unsharded, "unsharded parameters"));
  }
  ASSIGN_OR_RETURN(root_gradients_, SlotPool::Create(memory, 1, root.gradients, "the root's gradients"));
  ASSIGN_OR_RETURN(gradients_, SlotPool::Create(memory, slots.gradients, others.gradients, "unsharded gradients"));
  ASSIGN_OR_RETURN(gather_staging_, memory.Allocate(gather_bytes));
  ASSIGN_OR_RETURN(reduce_staging_, memory.Allocate(reduce_bytes));
  return absl::OkStatus();
}

void UnitRuntime::WaitForReductions() {
  compute_->Wait(post_backward_->Record());
  compute_->Wait(all_reduce_->Record());
}

absl::Status UnitRuntime::Unshard(int u) {
  const Unit& unit = units_.unit(u);
  State& state = states_[u];
  if (state.unsharded.defined()) return absl::OkStatus();
  if (ComputesOnShard(unit)) {
    state.unsharded = unit.shard;
    state.gathered = Event();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(Buffer buffer, UnshardedPool(u).Acquire(*unshard_));
  state.unsharded = Tensor(std::move(buffer), unit.compute_dtype, PaddedShape(u));
  Tensor gathered = state.unsharded;
  if (!unit.layout.in_place()) gathered = Tensor(gather_staging_, unit.compute_dtype, PaddedShape(u));
  const Tensor own = gathered.Slice(OwnShard(unit));
  const bool cast = unit.compute_dtype != unit.dtype;
  if (cast) ops_.CastDivide(unit.shard, own, 1, *unshard_);
  if (unit.sharded()) unit.groups.shard->AllGather(cast ? own : unit.shard, gathered, *unshard_);
  if (!unit.layout.in_place()) CopyOut(unit, gathered, state.unsharded, *unshard_);
  state.gathered = unshard_->Record();
  return absl::OkStatus();
}

// From [ranks, chunks of all parameters] to [parameters, chunks of all ranks].
void UnitRuntime::CopyOut(const Unit& unit, const Tensor& gathered, const Tensor& unsharded, Stream& stream) const {
  const ShardLayout& layout = unit.layout;
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    const int64_t numel = layout.chunk_numel(i);
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      const int64_t from = rank * layout.shard_numel() + layout.chunk_offset(i);
      const int64_t to = layout.parameters()[i].offset + rank * numel;
      ops_.CastDivide(gathered.Slice({from, from + numel}), unsharded.Slice({to, to + numel}), 1, stream);
    }
  }
}

// The way back, with a cast and a division.
void UnitRuntime::CopyIn(const Unit& unit, const Tensor& grad, const Tensor& rows, double divisor,
                         Stream& stream) const {
  const ShardLayout& layout = unit.layout;
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    const int64_t numel = layout.chunk_numel(i);
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      const int64_t from = layout.parameters()[i].offset + rank * numel;
      const int64_t to = rank * layout.shard_numel() + layout.chunk_offset(i);
      ops_.CastDivide(grad.Slice({from, from + numel}), rows.Slice({to, to + numel}), divisor, stream);
    }
  }
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
  if (!ComputesOnShard(unit)) {
    // A prefetched unit that was never computed is still being gathered: its slot is free after both.
    compute_->Wait(state.gathered);
    UnshardedPool(u).Release(state.unsharded.buffer(), compute_->Record());
  }
  state.unsharded = Tensor();
}

absl::Status UnitRuntime::BindGradients(int u, bool sync) {
  const Unit& unit = units_.unit(u);
  State& state = states_[u];
  if (!unit.trainable()) return absl::OkStatus();
  const int64_t nbytes = unit.layout.padded_numel() * SizeOf(unit.compute_dtype);
  if (!sync && !state.accumulated.defined()) {
    ASSIGN_OR_RETURN(Buffer buffer, units_.groups().any().Allocate(nbytes));
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

// The gradient as the collectives take it: in the reduce dtype, divided, in the order of the ranks' shards.
absl::StatusOr<Tensor> UnitRuntime::StartReduction(int u) {
  const Unit& unit = units_.unit(u);
  State& state = states_[u];
  if (!state.grad.defined()) {
    return absl::FailedPreconditionError("unit " + unit.display_name() + ": no gradient to reduce");
  }
  const double pre = FactorsOf(unit).pre;
  post_backward_->Wait(compute_->Record());
  if (!StagesReduction(unit)) {
    if (pre != 1) ops_.CastDivide(state.grad, state.grad, pre, *post_backward_);
    return state.grad;
  }
  post_backward_->Wait(reduce_staging_free_);
  const Tensor input(reduce_staging_, unit.reduce_dtype, PaddedShape(u));
  if (unit.layout.in_place()) {
    ops_.CastDivide(state.grad, input, pre, *post_backward_);
  } else {
    CopyIn(unit, state.grad, input, pre, *post_backward_);
  }
  ReleaseGradient(u, *post_backward_);
  return input;
}

// `last_user` is the stream whose work so far is the last to use the gradient that backward wrote.
void UnitRuntime::ReleaseGradient(int u, Stream& last_user) {
  State& state = states_[u];
  if (!state.grad.defined()) return;
  if (state.has_accumulated) {
    state.has_accumulated = false;
    // The next backward that writes to it is ordered after this reduction.
    compute_->Wait(last_user.Record());
  } else {
    GradientPool(u).Release(state.grad.buffer(), last_user.Record());
  }
  state.grad = Tensor();
}

absl::Status UnitRuntime::ReduceScatter(int u) {
  const Unit& unit = units_.unit(u);
  ASSIGN_OR_RETURN(const Tensor input, StartReduction(u));
  const Tensor reduced = input.Slice(OwnShard(unit));
  unit.groups.shard->ReduceScatter(input, reduced, ReduceOp::kSum, *post_backward_);
  if (unit.groups.replicate != nullptr) {
    states_[u].reduced = reduced;
  } else {
    Store(u, reduced, *post_backward_);
  }
  return absl::OkStatus();
}

absl::Status UnitRuntime::AllReduce(int u) {
  const Unit& unit = units_.unit(u);
  Stream& stream = unit.sharded() ? *all_reduce_ : *post_backward_;
  Tensor reduced = std::exchange(states_[u].reduced, Tensor());
  if (unit.sharded()) {
    stream.Wait(post_backward_->Record());
  } else {
    ASSIGN_OR_RETURN(reduced, StartReduction(u));
  }
  unit.groups.replicate->AllReduce(reduced, ReduceOp::kSum, stream);
  Store(u, reduced, stream);
  return absl::OkStatus();
}

// Ends a reduction: `reduced` becomes this rank's gradient.
void UnitRuntime::Store(int u, const Tensor& reduced, Stream& stream) {
  const Unit& unit = units_.unit(u);
  const auto& parameters = unit.sharded_parameters;
  const double post = FactorsOf(unit).post;
  const bool accumulate = std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p->has_grad; });
  if (!accumulate) {
    ops_.CastDivide(reduced, unit.grad_shard, post, stream);
  } else {
    for (const auto& parameter : parameters) {
      if (!parameter->has_grad) ops_.Zero(parameter->grad, stream);
    }
    ops_.CastDivide(reduced, reduced, post, stream);
    ops_.Accumulate(reduced, unit.grad_shard, stream);
  }
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i]->has_grad = unit.parameters[i]->requires_grad;
  if (StagesReduction(unit)) {
    reduce_staging_free_ = stream.Record();
  } else {
    ReleaseGradient(u, stream);
  }
}

absl::Status UnitRuntime::Synchronize() {
  absl::Status first;
  for (Stream* stream : {compute_.get(), unshard_.get(), post_backward_.get(), all_reduce_.get()}) {
    first.Update(stream->Synchronize());
  }
  return first;
}

}  // namespace fsdp
