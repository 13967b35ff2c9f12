// SPDX-License-Identifier: Apache-2.0
//
// GradientReduction: a unit's gradients during a step (bind, reduce, store), as stream work on static memory. Like
// UnitRuntime it decides nothing, and no call waits for the device unless its comment says so.
//
// Backward writes straight into views of an unsharded gradient buffer: the root's own, or a slot that units take turns
// in. The reduction reads that buffer, or one staging buffer if the gradient has to be cast or reordered by rows first:
//
//   backward -> gradient -> (staging) -> reduce-scatter -> all-reduce -> divided -> grad_shard
//               compute     | post_backward stream       | all_reduce stream      |
#ifndef FSDP_FSDP_UNITS_GRADIENT_REDUCTION_H_
#define FSDP_FSDP_UNITS_GRADIENT_REDUCTION_H_

#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/units/comm_hook.h"
#include "fsdp/fsdp/units/gradient_store.h"
#include "fsdp/fsdp/units/gradient_use.h"
#include "fsdp/fsdp/units/memory_plan.h"
#include "fsdp/fsdp/units/reduction_rule.h"
#include "fsdp/fsdp/units/slot_memory.h"
#include "fsdp/fsdp/units/slot_pool.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_streams.h"

namespace fsdp {

// Made and owned by UnitRuntime. Each call for a unit is for its dtype groups too, whose gradients have memory of their
// own and are reduced after the unit's, each by its own collectives. One thread.
class GradientReduction {
 public:
  // `units` and `streams` must outlive it, and its work on the streams must have ended when it is destroyed.
  // Collective.
  static absl::StatusOr<std::unique_ptr<GradientReduction>> Create(const UnitStore& units, const MemoryPlan& plan,
                                                                   UnitStreams& streams);
  ~GradientReduction();

  // Replaces the default reduction of every unit, divisions included. kFailedPrecondition when there is one already, a
  // unit is hybrid, or gradients were bound before; kInvalidArgument for an empty one.
  absl::Status SetCommHook(CommHook hook);

  // Between passes, with nothing on the streams: makes slots and staging anew if the plan has come to need others.
  // Local, but collective if the memory has windows.
  absl::Status FollowPlan();

  // Whether the gradient of a backward is reduced over the ranks, or stays local until a later one (no_sync()).
  enum class Sync { kReduce, kKeepLocal };
  static Sync SyncIf(bool sync) { return sync ? Sync::kReduce : Sync::kKeepLocal; }

  // Binds Parameter::grad to a buffer that the first gradients replace (unwritten_gradient.h), or to the gradient that
  // earlier backwards without synchronisation left. With kKeepLocal the buffer stays until a backward with
  // synchronisation. Does nothing for frozen units and if bound. kFailedPrecondition if the unit was frozen in all
  // forwards so far, and so has no memory for gradients.
  absl::Status Bind(int index, Sync sync);

  // Sets to zero what no backward has written of a bound gradient, for code that adds to Parameter::grad itself. Unbind
  // does so, too.
  void ZeroUnwritten(int index);

  // From now on backward adds to a gradient of the unit in the reduce dtype, for gradients that some kernels compute in
  // a wider dtype than the unit's compute dtype. Values added since Bind are kept, and Parameter::grad is bound anew.
  // Takes the memory of accumulated gradients. Does nothing if gradients do not accumulate in the reduce dtype
  // (Unit::accumulates_in_reduce_dtype), and under a communication hook, which takes the compute dtype.
  absl::Status Widen(int index);

  // Unbinds Parameter::grad. With kKeepLocal the gradient is kept.
  void Unbind(int index, Sync sync);

  // Sums the gradient over the shard group; each rank gets its shard of the sum (of ShardLayout::Packed by an
  // all-reduce). For a replicated unit AllReduce must follow. Otherwise the sum is stored as this rank's gradient:
  // added to grad_shard, or replacing it if no parameter has_grad. Collective.
  absl::Status ReduceScatter(int index);

  // Sums the result of ReduceScatter, or the whole gradient of a unit that is not sharded, over the replicate group,
  // and stores it in the same way. Collective.
  absl::Status AllReduce(int index);

  // The end of the backward of a unit that no other rank shares: its gradient is this rank's. No communication.
  absl::Status StoreLocal(int index);

  // GradientUse::Agree, for the gradients stored since the last call. Collective.
  absl::Status AgreeOnUse() { return use_.Agree(); }

  // After a backward that failed: discards every gradient, at any stage, and unbinds Parameter::grad. True if there was
  // one.
  bool Discard();

  // Makes the compute stream see all reductions issued so far.
  void WaitForReductions();

  // The memory of slots and staging, for windows of it.
  SlotMemory& memory() { return memory_; }

  // SlotPool::Sort of the slots that units share.
  void SortSlots() { gradients_.Sort(); }

 private:
  GradientReduction(const UnitStore& units, const MemoryPlan& plan, UnitStreams& streams);
  absl::Status Allocate();
  absl::Status AllocateSlots();
  absl::Status AllocateForGroups();
  bool GroupsSuffice() const;
  int64_t GroupBytes(int index) const;
  std::vector<SlotMemory::Pieces> Pieces() const;
  SlotPool& PoolOf(int index);
  ReductionRule RuleOf(const Unit& unit) const;

  // The index of the unit and those of its dtype groups; of these only the ones that have gradients.
  std::vector<int> PartsOf(int index) const;
  std::vector<int> PartsToReduce(int index) const;

  // As the public functions, for one part.
  absl::Status BindPart(int index, Sync sync);
  absl::Status WidenPart(int index);
  void UnbindPart(int index, Sync sync);
  absl::Status ReduceScatterPart(int index);
  absl::Status AllReducePart(int index);
  absl::Status StoreLocalPart(int index);

  absl::StatusOr<Tensor> Start(int index);
  absl::StatusOr<Tensor> StagingOf(int index, Stream& writer);
  bool has_custom_input(const Unit& unit) const;
  void MarkReduced(Stream& stream);
  absl::StatusOr<Tensor> Accumulated(int index);
  absl::Status MoveToAccumulated(int index);
  bool AddsAfterwards(int index) const;
  void BindViews(int index);
  void Release(int index, Stream& last_user);
  absl::Status SumOverShards(const Unit& unit, const Tensor& input, const Tensor& own);
  absl::Status KeepPartial(int index, const Tensor& reduced);
  absl::Status Store(int index, const Tensor& reduced, Stream& stream);

  const UnitStore& units_;
  const MemoryPlan& plan_;
  const TensorOps& ops_;
  Stream& compute_;
  Stream& post_backward_;
  Stream& all_reduce_;
  CommHook hook_;
  SlotMemory memory_;
  SlotPool root_gradients_, gradients_;
  std::map<int, SlotPool> group_gradients_;  // of one slot, by dtype group

  // What collectives read in place of a gradient. Reductions take them in turn.
  struct InputBuffer {
    Buffer memory;
    Event free;  // its last user is done
  };
  std::vector<InputBuffer> inputs_;
  size_t input_ = 0;  // of the last reduction that took one
  Event reduced_;     // the last reduction is done
  GradientStore store_;
  GradientUse use_;
  bool bound_ = false;  // Bind was called
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_GRADIENT_REDUCTION_H_
