// SPDX-License-Identifier: Apache-2.0
//
// UnitRuntime: the five things that happen to a unit during a step (unshard, bind, reshard, bind gradients, reduce), as
// stream work on static memory. It decides nothing: executor.h calls it in the order of a schedule.
//
// Memory. The root has an unsharded buffer and a gradient buffer of its own; the other units take turns in slots. An
// all-gather writes in place, parameters are views of its output; backward adds straight into views of the gradient
// buffer, from which the reduce-scatter reads. While a unit is resharded its Parameters are undefined, so a stale use
// is an error.
#ifndef FSDP_FSDP_UNIT_RUNTIME_H_
#define FSDP_FSDP_UNIT_RUNTIME_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "fsdp/divide_factors.h"
#include "fsdp/slot_pool.h"
#include "fsdp/unit.h"

namespace fsdp {

// How many slots the units other than the root share.
struct SlotCounts {
  int unsharded = 2;
  int gradients = 2;
};

class UnitRuntime {
 public:
  // `units` and `group` must outlive it. Allocates the slots from the group's memory.
  static absl::StatusOr<std::unique_ptr<UnitRuntime>> Create(const UnitStore& units, ProcessGroup& group,
                                                             const SlotCounts& slots);
  ~UnitRuntime();

  Stream& compute_stream() const { return *compute_; }

  // Makes all-gathers issued from now on see what the compute stream has done so far: the optimizer's step.
  void WaitForOptimizer() { unshard_->Wait(compute_->Record()); }

  // Makes the compute stream see all reductions issued so far.
  void WaitForReductions() { compute_->Wait(post_backward_->Record()); }

  // All-gathers `unit` into a slot; under kNoShard, which has nothing to gather, casts it if that is needed.
  absl::Status Unshard(int unit);

  // Makes the compute stream wait for Unshard and binds Parameter::data.
  absl::Status BindParameters(int unit);

  // Unbinds Parameter::data; the slot is free after the compute issued so far.
  void Reshard(int unit);

  // Binds Parameter::grad to a zeroed buffer, or to what earlier backwards without synchronisation left. `sync` off:
  // to a buffer that stays until a backward with synchronisation.
  absl::Status BindGradients(int unit, bool sync);

  // Unbinds Parameter::grad.
  void UnbindGradients(int unit);

  // Reduces the unit's gradient over the ranks (reduce-scatter, or all-reduce under kNoShard), divides, and adds it to
  // grad_shard, or replaces what is there if no parameter has_grad.
  absl::Status Reduce(int unit);

  // Waits for all streams; returns the first error.
  absl::Status Synchronize();

 private:
  struct State {
    Tensor unsharded;  // [padded_numel] in compute dtype; undefined while resharded
    Event gathered;
    Tensor grad;         // [padded_numel] in compute dtype; undefined outside backward
    Tensor accumulated;  // as grad, made by the first backward without synchronisation, then kept
    bool has_accumulated = false;
  };

  UnitRuntime(const UnitStore& units, ProcessGroup& group);
  absl::Status Allocate(const SlotCounts& slots);
  SlotPool& UnshardedPool(int unit) { return unit == units_.root_unit() ? root_unsharded_ : unsharded_; }
  SlotPool& GradientPool(int unit) { return unit == units_.root_unit() ? root_gradients_ : gradients_; }
  Shape PaddedShape(int unit) const { return {units_.unit(unit).layout.padded_numel()}; }
  Interval OwnShard(int unit) const;
  absl::Status StoreReduced(int unit, const Tensor& reduced);

  const UnitStore& units_;
  ProcessGroup& group_;
  const TensorOps& ops_;
  const bool sharded_;
  const DivideFactors factors_;
  SlotPool root_unsharded_, unsharded_, root_gradients_, gradients_;
  Buffer reduce_buffer_;       // where gradients are cast to the reduce dtype, if any unit needs that
  std::vector<State> states_;  // by unit

  // Last, so that their threads end before the memory they use goes.
  std::unique_ptr<Stream> compute_, unshard_, post_backward_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNIT_RUNTIME_H_
