// SPDX-License-Identifier: Apache-2.0
//
// One unshard, from the shard to the tensors that layers read:
//
//   shard --(upload)--(cast)--> own part of the gather buffer --all-gather--> gather buffer --(rows)--> slot, of which
//                                                                                            parameters are views
//
// Upload: only of shards in host memory. Cast: only if shard and compute dtype differ; with a compute_shard, which the
// optimizer or RefreshComputeShard cast already, the all-gather reads that. If shard and gather buffer agree in dtype
// and place, the all-gather reads the shard itself and nothing is copied. Rows: only if the ranks' shards in sequence
// are not the unsharded buffer (ShardLayout::in_place), else the gather buffer is the slot and the all-gather is in
// place. A unit that is not sharded computes on its shard or compute_shard itself if it can (Unit::computes_on_shard).
//
// A unit with dtype groups of other dtypes takes one slot for all, and one all-gather of bytes, in which each rank's
// row has the shards of all of them (unit_parts.h).
//
// The order of this work, all by events on streams:
//
//   the all-gather waits for      the optimizer's writes to the shard (WaitForOptimizer); the last user of its slot
//                                 (SlotPool::Acquire)
//   compute waits for             ParameterState::gathered, in BindParameters
//   the next user of the slot     all compute issued before Reshard
//
// The staging buffers need no event: only the unshard stream uses them, in order.
#include "fsdp/fsdp/units/unit_runtime.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/comm_memory.h"
#include "fsdp/fsdp/units/row_copy.h"
#include "fsdp/fsdp/units/unit_dtypes.h"
#include "fsdp/fsdp/units/unit_windows.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/trace.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {

UnitRuntime::UnitRuntime(const UnitStore& units, const MemoryPlan& plan)
    : units_(units), plan_(plan), ops_(units.device().ops()), memory_(SlotGroup(units)) {
  ClearStates();
}

// Another model may continue to use the streams, so none of this model's work may be on them when its memory goes.
UnitRuntime::~UnitRuntime() {
  if (streams_ != nullptr) streams_->Synchronize().IgnoreError();
  ClearStates();
}

void UnitRuntime::ClearStates() {
  for (const auto& unit : units_.units()) unit->state = UnitState();
}

absl::StatusOr<std::unique_ptr<UnitRuntime>> UnitRuntime::Create(const UnitStore& units, const MemoryPlan& plan,
                                                                 std::shared_ptr<UnitStreams> streams) {
  std::unique_ptr<UnitRuntime> runtime(new UnitRuntime(units, plan));
  runtime->streams_ = std::move(streams);
  if (runtime->streams_ == nullptr) {
    FSDP_ASSIGN_OR_RETURN(runtime->streams_, UnitStreams::Create(units.device()));
  }
  FSDP_RETURN_IF_ERROR(units.groups().AllReduceStatus(runtime->Allocate()));
  FSDP_ASSIGN_OR_RETURN(runtime->gradients_, GradientReduction::Create(units, runtime->plan_, *runtime->streams_));
  FSDP_RETURN_IF_ERROR(runtime->FollowWindows());
  return runtime;
}

absl::Status UnitRuntime::Allocate() {
  FSDP_RETURN_IF_ERROR(memory_.Reserve({{1, plan_.root_unsharded},
                                        {plan_.slots.unsharded, plan_.unsharded_slot},
                                        {1, plan_.gather_staging},
                                        {1, plan_.upload_staging}}));
  if (plan_.root_unsharded > 0) {
    FSDP_ASSIGN_OR_RETURN(root_unsharded_, SlotPool::Create(memory_, 1, plan_.root_unsharded, "the root's parameters"));
  }
  FSDP_ASSIGN_OR_RETURN(unsharded_,
                        SlotPool::Create(memory_, plan_.slots.unsharded, plan_.unsharded_slot, "unsharded parameters"));
  FSDP_ASSIGN_OR_RETURN(gather_staging_, memory_.Allocate(plan_.gather_staging));
  FSDP_ASSIGN_OR_RETURN(upload_staging_, memory_.Allocate(plan_.upload_staging));
  for (int index = 0; index < units_.size(); ++index) {
    Unit& unit = units_.unit(index);
    if (unit.post_forward_group == nullptr) continue;
    const int64_t numel = unit.layout.padded_numel() / unit.post_forward_group->size();
    FSDP_ASSIGN_OR_RETURN(Buffer buffer, units_.groups().any().Allocate(numel * SizeOf(unit.compute_dtype)));
    unit.state.parameters.post_forward_shard = Tensor(std::move(buffer), unit.compute_dtype, {numel});
  }
  return absl::OkStatus();
}

absl::Status UnitRuntime::EnsureSlots(int unsharded) {
  if (plan_.unsharded_slot == 0 || unsharded <= plan_.slots.unsharded) return absl::OkStatus();
  const int more = unsharded - plan_.slots.unsharded;
  absl::Status grown = memory_.Reserve({{more, plan_.unsharded_slot}});
  if (grown.ok()) grown = unsharded_.Grow(memory_, more);
  FSDP_RETURN_IF_ERROR(memory_.Register(grown));
  plan_.slots.unsharded = unsharded;
  return absl::OkStatus();
}

absl::Status UnitRuntime::FollowChanges(const SlotCounts& slots) {
  FSDP_RETURN_IF_ERROR(FollowRequiresGrad(slots));
  FSDP_RETURN_IF_ERROR(FollowControls());
  return FollowWindows();
}

absl::Status UnitRuntime::FollowRequiresGrad(const SlotCounts& slots) {
  std::vector<Unit*> changed;
  for (const auto& unit : units_.units()) {
    for (const Unit* part : unit->Parts()) FSDP_RETURN_IF_ERROR(CheckTrains(*unit, *part));
    for (size_t i = 0; i < unit->parameters.size(); ++i) {
      unit->sharded_parameters[i]->requires_grad = unit->parameters[i]->requires_grad;
    }
    if (unit->trainable() && !unit->GradientsAreLaid()) changed.push_back(unit.get());
  }
  if (changed.empty()) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(Synchronize());
  for (Unit* unit : changed) FSDP_RETURN_IF_ERROR(unit->LayGradients(units_.host(), compute()));
  // More slots for parameters may have been made than this plan has, and a unit that is frozen now keeps its memory.
  const MemoryPlan before = std::exchange(plan_, MemoryPlan::Of(units_, slots));
  plan_.slots.unsharded = before.slots.unsharded;
  plan_.slots.gradients = std::max(plan_.slots.gradients, before.slots.gradients);
  for (int64_t MemoryPlan::*shared :
       {&MemoryPlan::gradient_slot, &MemoryPlan::root_gradients, &MemoryPlan::group_gradients,
        &MemoryPlan::reduce_staging, &MemoryPlan::download_staging}) {
    plan_.*shared = std::max(plan_.*shared, before.*shared);
  }
  return gradients_->FollowPlan();
}

absl::Status UnitRuntime::FollowControls() {
  const MemoryPlan wanted = MemoryPlan::Of(units_, plan_.slots);
  plan_.kept_unsharded = std::max(plan_.kept_unsharded, wanted.kept_unsharded);
  if (wanted.reduce_inputs == plan_.reduce_inputs) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(Synchronize());
  plan_.reduce_inputs = wanted.reduce_inputs;
  return gradients_->FollowPlan();
}

void UnitRuntime::WaitForOptimizer(const Event& optimizer_done) {
  if (optimizer_done.state() != nullptr) unshard().Wait(optimizer_done);
  // A stream joins a capture by waiting for a captured one. So while capturing, wait for compute even if the program
  // gave an event; otherwise the all-gathers would run now instead of being recorded.
  if (optimizer_done.state() == nullptr || IsCapturing(compute())) unshard().Wait(compute().Record());
}

void UnitRuntime::RefreshComputeShards() {
  WaitForOptimizer(Event());
  for (const auto& unit : units_.units()) {
    if (unit->compute_shard.defined()) RefreshComputeShard(*unit);
  }
}

DType UnitRuntime::UnshardedDType(const Unit& unit) const {
  return full_precision_ && unit.settings.full_precision_in_eval ? unit.dtype : unit.compute_dtype;
}

// True if the part computes on its shard, and so needs no slot.
bool UnitRuntime::UseShard(Unit& part) {
  ParameterState& state = part.state.parameters;
  const DType dtype = UnshardedDType(part);
  if (!state.in_group) state.version = part.shard_version();
  state.on_shard = part.computes_on_shard(dtype);
  if (part.has_compute_shard(dtype)) RefreshComputeShard(part);
  if (!state.on_shard) return false;
  state.unsharded = part.has_compute_shard(dtype) ? part.compute_shard : part.shard;
  state.gathered = part.has_compute_shard(dtype) ? unshard().Record() : Event();
  return true;
}

// The root's only slot is its own in any case.
absl::Status UnitRuntime::ChoosePool(int index) {
  Unit& unit = units_.unit(index);
  bool& in_own_slot = unit.state.parameters.in_own_slot;
  in_own_slot = unit.controls.keep_unsharded_storage && index != units_.root_unit();
  if (!in_own_slot || own_slots_.count(index) != 0) return absl::OkStatus();
  const int64_t nbytes = UnitParts(unit).slot_bytes;
  absl::Status allocated = memory_.Reserve({{1, nbytes}});
  if (allocated.ok()) {
    absl::StatusOr<SlotPool> pool =
        SlotPool::Create(memory_, 1, nbytes, "the parameters of unit " + unit.display_name());
    allocated = pool.status();
    if (pool.ok()) own_slots_[index] = *std::move(pool);
  }
  return memory_.Register(allocated);
}

SlotPool& UnitRuntime::PoolOf(int index) {
  if (index == units_.root_unit()) return root_unsharded_;
  return units_.unit(index).state.parameters.in_own_slot ? own_slots_[index] : unsharded_;
}

absl::Status UnitRuntime::Unshard(int index) {
  Unit& unit = units_.unit(index);
  ParameterState& state = unit.state.parameters;
  if (state.unsharded.defined()) return absl::OkStatus();
  const UnitParts all(unit);
  bool needs_slot = false;
  for (const UnitParts::Part& part : all.parts) needs_slot |= !UseShard(*part.unit);
  if (!needs_slot) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(ChoosePool(index));
  FSDP_ASSIGN_OR_RETURN(state.slot, PoolOf(index).Acquire(unshard(), unit.display_name()));
  for (const UnitParts::Part& part : all.parts) {
    ParameterState& of_part = part.unit->state.parameters;
    if (!of_part.on_shard) of_part.unsharded = part.InSlot(state.slot, UnshardedDType(*part.unit));
  }
  {
    const TraceScope span(units_.trace(), unshard(), [&] { return "all_gather " + unit.display_name(); });
    FSDP_RETURN_IF_ERROR(GatherShards(unit));
  }
  for (const UnitParts::Part& part : all.parts) part.unit->state.parameters.gathered = unshard().Record();
  return absl::OkStatus();
}

absl::Status UnitRuntime::GatherShards(Unit& unit) {
  const bool in_group = unit.state.parameters.in_group;
  if (unit.sharded() && !in_group) {
    return unit.dtype_groups.empty() ? GatherShard(unit) : GatherBytes(UnitParts(unit));
  }
  for (const Unit* part : unit.Parts()) {
    if (in_group) {
      GatherFromGroup(*part);
    } else if (!part->state.parameters.on_shard) {
      FillOwn(*part, part->state.parameters.unsharded);
    }
  }
  return absl::OkStatus();
}

// The buffer that the all-gather writes: the slot, the staging buffer, or the memory that the program's own
// AllGatherComm allocates. Only the work on the unshard stream reads the latter, and holds it.
absl::StatusOr<Tensor> UnitRuntime::GatherBuffer(const Unit& unit, DType dtype, int64_t numel) {
  if (unit.controls.all_gather != nullptr) {
    FSDP_ASSIGN_OR_RETURN(const Tensor memory, unit.controls.all_gather->Allocate(numel, dtype, *unit.groups.shard));
    FSDP_RETURN_IF_ERROR(CheckCommMemory(memory, dtype, unit, numel, "AllGatherComm"));
    return memory.View({numel});
  }
  const bool in_slot = unit.dtype_groups.empty() && unit.layout.in_place();
  return in_slot ? unit.state.parameters.unsharded : Tensor(gather_staging_, dtype, {numel});
}

absl::Status UnitRuntime::GatherShard(const Unit& unit) {
  const Tensor& unsharded = unit.state.parameters.unsharded;
  const DType dtype = unsharded.dtype();
  FSDP_ASSIGN_OR_RETURN(const Tensor gathered, GatherBuffer(unit, dtype, unit.layout.padded_numel()));
  const Tensor own = gathered.Slice(unit.own_part(unit.layout));
  const bool custom = unit.controls.all_gather != nullptr;
  const Tensor& kept = unit.has_compute_shard(dtype) ? unit.compute_shard : unit.shard;
  const bool from_shard = dtype == kept.dtype() && !unit.offloaded() && !custom;
  if (!from_shard) FillOwn(unit, own);
  if (custom) {
    unit.controls.all_gather->AllGather(own, gathered, *unit.groups.shard, unshard());
  } else {
    unit.all_gather_group()->AllGather(from_shard ? kept : own, gathered, unshard());
  }
  if (!unit.layout.in_place()) {
    RowCopy(unit.layout).Out(gathered, unsharded, ops_, unshard());
  } else if (custom) {
    ops_.CastDivide(gathered, unsharded, 1, unshard());
  }
  return absl::OkStatus();
}

absl::Status UnitRuntime::GatherBytes(const UnitParts& all) {
  const Unit& unit = *all.parts[0].unit;
  ProcessGroup& group = *unit.groups.shard;
  FSDP_ASSIGN_OR_RETURN(const Tensor rows, GatherBuffer(unit, DType::kUInt8, all.row_bytes * group.size()));
  const Tensor own = rows.Slice({group.rank() * all.row_bytes, (group.rank() + 1) * all.row_bytes});
  for (const UnitParts::Part& part : all.parts) {
    FillOwn(*part.unit, part.InRow(own.buffer(), part.unit->state.parameters.unsharded.dtype()));
  }
  if (unit.controls.all_gather != nullptr) {
    unit.controls.all_gather->AllGather(own, rows, group, unshard());
  } else {
    unit.all_gather_group()->AllGather(own, rows, unshard());
  }
  for (const UnitParts::Part& part : all.parts) {
    const Tensor& unsharded = part.unit->state.parameters.unsharded;
    const RowCopy copy(part.unit->layout, group.size(), all.row_bytes / SizeOf(unsharded.dtype()));
    copy.Out(part.InRows(rows.buffer(), unsharded.dtype()), unsharded, ops_, unshard());
  }
  return absl::OkStatus();
}

// Makes the compute shard current: casts the whole shard, unless an optimizer wrote the low-precision copy of every
// parameter itself (ShardedParameter::compute_copy_current).
void UnitRuntime::RefreshComputeShard(const Unit& unit) {
  const auto& parameters = unit.sharded_parameters;
  if (std::all_of(parameters.begin(), parameters.end(), [](const auto& p) { return p->compute_copy_current; })) return;
  ops_.CastDivide(unit.shard, unit.compute_shard, 1, unshard());
  for (const auto& parameter : parameters) parameter->compute_copy_current = true;
}

// Copies this rank's shard to `own`, in the dtype of `own`, from device or host memory.
void UnitRuntime::FillOwn(const Unit& unit, const Tensor& own) {
  const bool cast = own.dtype() != unit.dtype;
  if (!unit.offloaded() && (cast || IsComputed(unit.dtype))) {
    ops_.CastDivide(unit.has_compute_shard(own.dtype()) ? unit.compute_shard : unit.shard, own, 1, unshard());
    return;
  }
  const Tensor copied = cast ? Tensor(upload_staging_, unit.dtype, unit.shard.shape()) : own;
  unshard().CopyAsync(copied.data(), unit.shard.data(), unit.shard.nbytes());
  if (cast) ops_.CastDivide(copied, own, 1, unshard());
}

// All-gathers from the shards of the smaller post-forward group. They arrive in that group's order of rows, so they go
// through staging.
void UnitRuntime::GatherFromGroup(const Unit& unit) {
  const ParameterState& state = unit.state.parameters;
  unshard().Wait(state.moved_to_group);
  const Tensor rows(gather_staging_, unit.compute_dtype, {unit.layout.padded_numel()});
  unit.post_forward_group->AllGather(state.post_forward_shard, rows, unshard());
  RowCopy(unit.layout, unit.post_forward_group->size()).Out(rows, state.unsharded, ops_, unshard());
}

absl::Status UnitRuntime::BindParameters(int index) {
  if (!is_unsharded(index)) FSDP_RETURN_IF_ERROR(Unshard(index));  // kNoShard schedules no all-gather
  for (const Unit* part : units_.unit(index).Parts()) {
    const ParameterState& state = part->state.parameters;
    compute().Wait(state.gathered);
    for (size_t i = 0; i < part->parameters.size(); ++i) {
      const ShardLayout::Entry& entry = part->layout.parameters()[i];
      part->parameters[i]->data =
          state.unsharded.Slice({entry.offset, entry.offset + entry.shape.numel()}).View(entry.shape);
    }
  }
  return absl::OkStatus();
}

bool UnitRuntime::has_gathered_copy(int index) const {
  const Unit& unit = units_.unit(index);
  const ParameterState& state = unit.state.parameters;
  return unit.sharded() && (state.unsharded.defined() || state.in_group);
}

bool UnitRuntime::is_stale(int index) const {
  const std::vector<Unit*> parts = units_.unit(index).Parts();
  return std::any_of(parts.begin(), parts.end(), [](const Unit* part) {
    const ParameterState& state = part->state.parameters;
    return (state.unsharded.defined() || state.in_group) && state.version != part->shard_version();
  });
}

void UnitRuntime::Reshard(int index) {
  Unit& unit = units_.unit(index);
  if (unit.dtype_group_of.has_value()) return;
  ParameterState& state = unit.state.parameters;
  for (Unit* part : unit.Parts()) {
    ParameterState& of_part = part->state.parameters;
    of_part.in_group = false;
    if (!of_part.unsharded.defined()) continue;
    for (const auto& parameter : part->parameters) parameter->data = Tensor();
    of_part.unsharded = Tensor();
  }
  if (!state.slot) return;
  // Compute never waited for the all-gather of a unit that was prefetched and not used. The slot is free only after
  // that all-gather too.
  compute().Wait(state.gathered);
  PoolOf(index).Release(std::exchange(state.slot, Buffer()), compute().Record());
}

void UnitRuntime::ReshardToGroup(int index) {
  Unit& unit = units_.unit(index);
  if (!unit.state.parameters.slot) return;
  const ProcessGroup& group = *unit.post_forward_group;
  for (const Unit* part : unit.Parts()) {
    const ParameterState& state = part->state.parameters;
    RowCopy(part->layout, group.size()).InRow(state.unsharded, group.rank(), state.post_forward_shard, ops_, compute());
  }
  const Event moved = compute().Record();
  Reshard(index);
  for (Unit* part : unit.Parts()) {
    part->state.parameters.moved_to_group = moved;
    part->state.parameters.in_group = true;
  }
}

absl::Status UnitRuntime::Synchronize() { return streams_->Synchronize(); }

}  // namespace fsdp
