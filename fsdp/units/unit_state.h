// SPDX-License-Identifier: Apache-2.0
//
// UnitState: the state of one unit within a step: its parameters, its gradients, and the pass that is running. One
// object for each unit, at Unit::state; each part has one writer, named at it. A unit's memory between steps is in
// unit.h.
#ifndef FSDP_FSDP_UNITS_UNIT_STATE_H_
#define FSDP_FSDP_UNITS_UNIT_STATE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class Module;

// Written by UnitRuntime. The parameters are resharded (`unsharded` undefined), in the post-forward group (`in_group`),
// or unsharded.
struct ParameterState {
  Tensor unsharded;          // [padded_numel]; undefined while resharded
  Buffer slot;               // that the unit and its dtype groups are in; of the unit only, unless all are on_shard
  bool in_own_slot = false;  // `slot` is of no pool that units share (UnitControls::keep_unsharded_storage)
  int64_t version = 0;       // Unit::shard_version() when it was read from the shards
  bool on_shard = false;     // it is the shard itself
  Event gathered;
  Tensor post_forward_shard;  // of units with a post-forward group
  bool in_group = false;      // the parameters are in post_forward_shards
  Event moved_to_group;
};

// Written by GradientReduction, the last two by GradientUse.
struct GradientState {
  // [padded_numel] in the compute dtype, or `accumulated`; undefined outside of backward.
  Tensor grad;
  bool is_unwritten = false;  // parts of `grad` may hold anything (unwritten_gradient.h)

  // The sum over backwards without synchronisation; allocated by the first, then kept, and valid if has_accumulated.
  Tensor accumulated;
  bool has_accumulated = false;
  bool wide = false;  // Widen was called: backward adds to `accumulated`

  // This rank's part in the reduce dtype, between ReduceScatter and AllReduce.
  Tensor reduced;

  // Sums over the shard group only, while all-reduces are put off; allocated by the first, then kept, and valid if
  // has_partial.
  Tensor partial;
  bool has_partial = false;

  std::vector<bool> used;      // by parameter: since gradients were stored last; empty: none
  std::vector<bool> had_grad;  // by parameter: has_grad as it was before the first store since GradientUse::Agree
};

// Dtypes before a cast; nullopt for tensors that are not cast.
using DTypes = std::vector<std::optional<DType>>;

// For a unit or a bare module, both of which are in schedules and cast tensors.
struct PassState {
  // Written by ScheduleRunner. `gathered`: all-gathered by the events run so far, and not resharded. This differs from
  // ParameterState::unsharded on purpose: schedules have no all-gather for a unit that is not sharded, which may still
  // have that buffer.
  bool gathered = false;
  bool used = false;             // computed since it was gathered: off for a unit that was only prefetched
  bool awaits_backward = false;  // recomputed in its own backward, whose kBackward the plan has yet to run

  // Written by Executor, since it entered the unit, if it has not left it: the modules of the unit that this forward
  // has run; that its forward has run again within another unit's backward; how many backwards of them have run.
  std::set<const Module*> modules_run;
  std::set<const Module*> modules_rerun;
  int backwards_run = 0;

  // Written by UnitCasts, in the last forward.
  DTypes inputs, outputs;
};

struct UnitState {
  ParameterState parameters;
  GradientState gradients;
  PassState pass;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_STATE_H_
