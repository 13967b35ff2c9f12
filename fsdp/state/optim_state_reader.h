// SPDX-License-Identifier: Apache-2.0
//
// OptimStateReader: an optimizer's state dict in any form, read as this rank's slices; what loading into an optimizer
// and the forms of optim_slices.h have in common.
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

namespace fsdp {

class OptimStateReader {
 public:
  // One state of one parameter. `unit` is -1 where no unit has the parameter: every rank has its state whole.
  struct Item {
    OptimEntry entry;
    int unit = -1;
    size_t index = 0;
  };

  // `units` and `state` must outlive it. Collective for kFullFirst and kSharded.
  static absl::StatusOr<std::unique_ptr<OptimStateReader>> Create(const UnitStore& units, const StateDict& state,
                                                                  StateSource from);

  // In the order in which all ranks must Read them.
  const std::vector<Item>& items() const { return items_; }
  const std::optional<std::string>& param_groups() const { return param_groups_; }

  // This rank's part of the state that `item` is, where it is no scalar of the whole parameter.
  Interval IntervalOf(const Item& item) const;

  // OK when `item` can be read as `dtype`: its shape is the parameter's, and this rank holds what its form says. Local.
  absl::Status Check(const Item& item, DType dtype) const;

  // Puts this rank's part at `destination`, by FinishReads at the latest. Collective for kFullFirst and kSharded.
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

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_STATE_READER_H_
