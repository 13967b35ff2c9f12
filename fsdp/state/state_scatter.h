// SPDX-License-Identifier: Apache-2.0
//
// StateScatter: the reverse of StateGather: from a state dict's tensors, which are whole on every rank, whole only on
// rank 0, or cut into dim-0 chunks, to the units' slices. The exchanges of a batch of tensors are independent of each
// other, and are issued as one (collectives/group/coalesced_calls.h). A batch is as large as the largest unit, so
// memory beyond the result is one unsharded unit, or one tensor that is larger.
#ifndef FSDP_FSDP_STATE_STATE_SCATTER_H_
#define FSDP_FSDP_STATE_STATE_SCATTER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/state/state_form.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/sharded_tensor.h"

namespace fsdp {

class StateScatter final {
 public:
  // `units` and `gather`, whose stream it uses, must outlive it.
  StateScatter(const UnitStore& units, StateGather& gather, StateSource from);

  // Fills `destination`, this rank's slice of parameter `index` of unit `unit`, from `source`, converting
  // floating-point dtypes, as work on the gather's stream. That work may be issued as late as by Flush. Ranks must add
  // the same tensors in the same order. Collective for kFullFirst and kSharded.
  absl::Status Add(int unit, size_t index, const ShardedTensor& source, const Tensor& destination);

  // As Add, for a destination that every rank holds whole.
  absl::Status AddReplicated(const ShardedTensor& source, const Tensor& destination);

  // Issues the exchanges of all tensors that were added and not exchanged yet. Collective; does not block.
  absl::Status Flush();

 private:
  // A tensor that is to be exchanged.
  struct Item {
    ProcessGroup* group = nullptr;          // all-gather over this group; null: broadcast from rank 0
    ProcessGroup* first = nullptr;          // not null: all-gather `own` over this group first, to `chunks`
    Tensor whole;                           // the whole tensor; before the exchange with this rank's part only
    Tensor own = {};                        // this rank's part of `whole`, for the all-gather
    Tensor chunks = {};                     // what the members of `first` have of `whole`
    std::vector<IntervalCopy> wanted = {};  // the elements that this rank needs, from `whole` to `destination`
    Tensor destination = {};
  };

  absl::StatusOr<Item> FromChunks(const Unit& unit, size_t index, const ShardedTensor& source, DType dtype);
  absl::StatusOr<Item> FromFirst(const ShardedTensor& source, DType dtype);
  absl::Status CopyRuns(const Tensor& whole, const std::vector<IntervalCopy>& runs, const Tensor& destination);
  absl::Status Push(Item item, std::vector<IntervalCopy> wanted, const Tensor& destination);
  void Exchange(absl::Span<const Item> items);  // all of one group

  const UnitStore& units_;
  StateGather& gather_;
  const StateSource from_;
  const int64_t batch_bytes_;
  std::vector<Item> items_;
  int64_t nbytes_ = 0;  // of items_
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_STATE_SCATTER_H_
