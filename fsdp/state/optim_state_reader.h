// SPDX-License-Identifier: Apache-2.0
//
// OptimStateReader: an optimizer's state dict in any form, read as this rank's slices. Loading into an optimizer
// (optim_state_load.cc) reads into the optimizer's own memory, OptimSlices into a new state dict.
#ifndef FSDP_FSDP_STATE_OPTIM_STATE_READER_H_
#define FSDP_FSDP_STATE_OPTIM_STATE_READER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/optim_entries.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/state/state_scatter.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

class OptimStateReader {
 public:
  // One state of one parameter. `unit` is -1 if no unit has the parameter, or if the state is a factor (FactorShape);
  // every rank then has the state whole.
  struct Item {
    OptimEntry entry;
    int unit = -1;
    size_t index = 0;
  };

  // `units` and `state` must outlive it. Collective for kFullFirst and kSharded.
  static absl::StatusOr<std::unique_ptr<OptimStateReader>> Create(const UnitStore& units, const StateDict& state,
                                                                  StateSource from);

  // All states of the state dict, in the order in which every rank must Read them.
  const std::vector<Item>& items() const { return items_; }
  const std::optional<std::string>& param_groups() const { return param_groups_; }

  // The elements of `item` that this rank needs. `item` is not a scalar.
  Interval IntervalOf(const Item& item) const;

  // OK if `item` can be read as `dtype`: its shape is the parameter's, and this rank holds the elements that the form
  // of the state dict gives it. Local.
  absl::Status Check(const Item& item, DType dtype) const;

  // Copies this rank's part to `destination`, which may happen as late as in FinishReads. Collective for kFullFirst and
  // kSharded: items are exchanged in batches, so ranks must read the same items in the same order.
  absl::Status Read(const Item& item, const Tensor& destination);
  absl::Status FinishReads() { return scatter_->Flush(); }

  StateGather& gather() { return *gather_; }

 private:
  OptimStateReader(const UnitStore& units, const StateDict& state, StateSource from)
      : units_(units), state_(state), from_(from) {}

  ShardedTensor TensorOf(const Item& item) const;

  const UnitStore& units_;
  const StateDict& state_;
  const StateSource from_;
  std::unique_ptr<StateGather> gather_;
  std::unique_ptr<StateScatter> scatter_;
  std::vector<Item> items_;
  std::optional<std::string> param_groups_;
};

// An optimizer's state dict converted from the form in which it was saved to the form that this rank's optimizer needs:
// the slices of its flat shards, keyed by names, as a LOCAL state dict. Only the optimizer's part of a state dict is
// converted. Entries of parameters outside all units, the user's own entries among them, are copied unchanged, and so
// is param_groups if the state dict has it. The slices are in newly allocated memory: tensors on the group's device,
// scalars in pinned host memory. kInvalidArgument names an entry of another shape or form; every rank returns it,
// except under kFull and kLocal, which do not communicate; also for kLocal of a model made with a mesh, and for every
// form of one with tensor parallelism. Collective for kFullFirst and kSharded. Blocks.
absl::StatusOr<StateDict> OptimSlices(const UnitStore& units, const StateDict& state, StateSource from);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_STATE_READER_H_
