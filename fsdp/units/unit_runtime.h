// SPDX-License-Identifier: Apache-2.0
//
// UnitRuntime: a unit's parameters during a step (unshard, bind, reshard), as stream work on static memory.
// gradient_reduction.h does the same for gradients. UnitRuntime decides nothing: executor.h calls it in the order of a
// schedule. No call waits for the device unless its comment says "blocks".
//
// The root has a separate unsharded buffer; the other units take turns in slots. An all-gather writes in place and
// parameters are views of its output. If the shards of all ranks in sequence are not the unsharded buffer
// (ShardLayout's rows), the all-gather writes to one staging buffer, which the unshard stream uses unit after unit, and
// the result is copied to the slot. The dtype groups of a unit share its all-gather and its slot. While a unit is
// resharded its Parameters are undefined, so a stale use is an error.
#ifndef FSDP_FSDP_UNITS_UNIT_RUNTIME_H_
#define FSDP_FSDP_UNITS_UNIT_RUNTIME_H_

#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/units/gradient_reduction.h"
#include "fsdp/fsdp/units/memory_plan.h"
#include "fsdp/fsdp/units/slot_memory.h"
#include "fsdp/fsdp/units/slot_pool.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_parts.h"
#include "fsdp/fsdp/units/unit_streams.h"

namespace fsdp {

// Units are named by their index in the UnitStore; a dtype group by its unit's. One thread.
class UnitRuntime {
 public:
  // `units` must outlive it, and have no other runtime meanwhile: their Unit::state begins and ends with this.
  // Allocates `plan` from the groups' memory. `streams`: of the units' device; null: creates its own. Collective.
  static absl::StatusOr<std::unique_ptr<UnitRuntime>> Create(const UnitStore& units, const MemoryPlan& plan,
                                                             std::shared_ptr<UnitStreams> streams = nullptr);
  ~UnitRuntime();  // waits for the streams

  const MemoryPlan& plan() const { return plan_; }
  Stream& compute_stream() const { return compute(); }
  const std::shared_ptr<UnitStreams>& streams() const { return streams_; }
  GradientReduction& gradients() const { return *gradients_; }

  // Makes all-gathers issued from now on wait for `optimizer_done`; an empty event: for all compute so far.
  void WaitForOptimizer(const Event& optimizer_done);

  // Casts every shard whose compute shard is stale, so that no later Unshard casts.
  void RefreshComputeShards();

  // Adds slots until `unsharded` units other than the root can be unsharded at one time. Does nothing if there are
  // enough. Allocates, so not within a step whose memory is to be static. Collective if the memory has windows.
  absl::Status EnsureSlots(int unsharded);

  // Follows changes of Parameter::requires_grad and of the memory that controls ask for, between passes: tells the
  // optimizer's views, and lays gradients anew if other parameters require one (Unit::LayGradients); both may wait for
  // the streams. `slots`: of a plan in which all units are trainable. All ranks must change them alike. The errors of
  // CheckTrains and UnitWindows::Of. Local, but collective if the units' windows have changed or their memory has.
  absl::Status FollowChanges(const SlotCounts& slots);

  // From now on units with full_precision_in_eval are unsharded in their original dtype.
  void set_full_precision(bool full_precision) { full_precision_ = full_precision; }

  // All-gathers the unit into a slot. A unit that is not sharded has nothing to gather, and is copied or cast if
  // needed. Does nothing if the unit is unsharded. kFailedPrecondition if all slots are in use. Collective for sharded
  // units.
  absl::Status Unshard(int index);

  // Makes the compute stream wait for Unshard, which it calls if that was not done, and binds Parameter::data to views
  // of the unsharded buffer.
  absl::Status BindParameters(int index);

  // Unbinds Parameter::data. The next user of the slot waits for the compute issued so far. Does nothing if resharded,
  // and for a dtype group.
  void Reshard(int index);

  // As Reshard, but first copies this rank's part for the post-forward group, from which the next Unshard gathers.
  void ReshardToGroup(int index);

  bool is_unsharded(int index) const { return units_.unit(index).state.parameters.unsharded.defined(); }

  // True if the unit has a copy of parameters, unsharded or in its post-forward group, that other ranks have parts of.
  bool has_gathered_copy(int index) const;

  // True if the unit or a dtype group of it has a copy of parameters, gathered, cast or uploaded, from before its
  // shard was changed. Such a copy must be resharded and not computed with.
  bool is_stale(int index) const;

  // Waits for all streams; returns the first error.
  absl::Status Synchronize();

 private:
  UnitRuntime(const UnitStore& units, const MemoryPlan& plan);
  absl::Status Allocate();
  void ClearStates();
  Stream& compute() const { return *streams_->compute; }
  Stream& unshard() const { return *streams_->unshard; }
  absl::Status FollowRequiresGrad(const SlotCounts& slots);
  absl::Status FollowControls();
  absl::Status FollowWindows();
  absl::Status ChoosePool(int index);
  SlotPool& PoolOf(int index);
  DType UnshardedDType(const Unit& unit) const;
  bool UseShard(Unit& part);
  absl::Status GatherShards(Unit& unit);
  absl::Status GatherShard(const Unit& unit);
  absl::Status GatherBytes(const UnitParts& all);
  void GatherFromGroup(const Unit& part);
  void RefreshComputeShard(const Unit& unit);
  void FillOwn(const Unit& unit, const Tensor& own);
  absl::StatusOr<Tensor> GatherBuffer(const Unit& unit, DType dtype, int64_t numel);

  const UnitStore& units_;
  MemoryPlan plan_;
  const TensorOps& ops_;
  SlotMemory memory_;
  SlotPool root_unsharded_, unsharded_;
  std::map<int, SlotPool> own_slots_;  // of one slot, by unit that keeps its storage
  Buffer gather_staging_, upload_staging_;
  bool full_precision_ = false;
  std::shared_ptr<UnitStreams> streams_;
  std::unique_ptr<GradientReduction> gradients_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_RUNTIME_H_
