// SPDX-License-Identifier: Apache-2.0
//
// UnitRuntime: what happens to a unit during a step (unshard, bind, reshard, bind gradients, reduce), as stream work on
// static memory. It decides nothing: executor.h calls it in the order of a schedule.
//
// Memory. The root has an unsharded buffer and a gradient buffer of its own; the other units take turns in slots. An
// all-gather writes in place, parameters are views of its output; backward adds straight into views of the gradient
// buffer, from which the reduce-scatter reads. Where shards side by side are not the unsharded buffer (ShardLayout's
// dim-0 chunks), or the gradient is reduced in another dtype, collectives work in one staging buffer each, which the
// unshard and the post-backward stream use unit after unit. While a unit is resharded its Parameters are undefined, so
// a stale use is an error.
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
  // `units` must outlive it. Allocates the slots from the groups' memory. Collective.
  static absl::StatusOr<std::unique_ptr<UnitRuntime>> Create(const UnitStore& units, const SlotCounts& slots);
  ~UnitRuntime();

  Stream& compute_stream() const { return *compute_; }

  // Makes all-gathers issued from now on see what the compute stream has done so far: the optimizer's step.
  void WaitForOptimizer() { unshard_->Wait(compute_->Record()); }

  // Makes the compute stream see all reductions issued so far.
  void WaitForReductions();

  // All-gathers `unit` into a slot; one that is not sharded has nothing to gather, and is cast if that is needed.
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

  // Divides the gradient and sums it over the shard group, each rank its shard. Where AllReduce is not to follow, adds
  // it to grad_shard, or replaces what is there if no parameter has_grad.
  absl::Status ReduceScatter(int unit);

  // Sums what ReduceScatter left, or the whole gradient of a unit that is not sharded, over the replicate group, and
  // stores it as ReduceScatter does.
  absl::Status AllReduce(int unit);

  // Waits for all streams; returns the first error.
  absl::Status Synchronize();

 private:
  struct State {
    Tensor unsharded;  // [padded_numel] in compute dtype; undefined while resharded
    Event gathered;
    Tensor grad;         // [padded_numel] in compute dtype; undefined outside backward
    Tensor accumulated;  // as grad, made by the first backward without synchronisation, then kept
    bool has_accumulated = false;
    Tensor reduced;  // [shard_numel] in reduce dtype, between ReduceScatter and AllReduce
  };

  explicit UnitRuntime(const UnitStore& units);
  absl::Status Allocate(const SlotCounts& slots);
  SlotPool& UnshardedPool(int unit) { return unit == units_.root_unit() ? root_unsharded_ : unsharded_; }
  SlotPool& GradientPool(int unit) { return unit == units_.root_unit() ? root_gradients_ : gradients_; }
  Shape PaddedShape(int unit) const { return {units_.unit(unit).layout.padded_numel()}; }

  absl::StatusOr<Tensor> StartReduction(int unit);
  void CopyOut(const Unit& unit, const Tensor& gathered, const Tensor& unsharded, Stream& stream) const;
  void CopyIn(const Unit& unit, const Tensor& grad, const Tensor& rows, double divisor, Stream& stream) const;
  void Store(int unit, const Tensor& reduced, Stream& stream);
  void ReleaseGradient(int unit, Stream& last_user);

  const UnitStore& units_;
  const TensorOps& ops_;
  SlotPool root_unsharded_, unsharded_, root_gradients_, gradients_;
  Buffer gather_staging_;      // for layouts that are not in place
  Buffer reduce_staging_;      // likewise, and for gradients reduced in another dtype
  Event reduce_staging_free_;  // its last user's work is done
  std::vector<State> states_;  // by unit

  // Last, so that their threads end before the memory they use goes.
  std::unique_ptr<Stream> compute_, unshard_, post_backward_, all_reduce_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNIT_RUNTIME_H_
