// SPDX-License-Identifier: Apache-2.0
//
// StateGather: makes whole parameters or dim-0 chunks of a unit's shards; state_scatter.h is the reverse. Parameters
// and optimizer states are sharded alike, so the same code gathers both. Works unit by unit in one buffer, so that
// memory beyond the result is one unsharded unit. Only Synchronize blocks.
#ifndef FSDP_FSDP_STATE_STATE_GATHER_H_
#define FSDP_FSDP_STATE_STATE_GATHER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/state/state_form.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/sharded_tensor.h"

namespace fsdp {

// The group over which a unit's SHARDED state is cut: its shard group; the group of all ranks if it is not sharded.
ProcessGroup& ChunkGroup(const Unit& unit);

// Equal chunks, and equal shards, exist on several ranks of a hybrid model: which of the copies, counted from 0, this
// rank holds. See ShardedTensor::replica.
int ChunkReplica(const Unit& unit);
int ShardReplica(const Unit& unit);

class StateGather {
 public:
  // `units` must outlive it. The buffer is allocated by the first Gather that needs it.
  static absl::StatusOr<std::unique_ptr<StateGather>> Create(const UnitStore& units);

  // All-gathers `shard`, this rank's [shard_numel] part of a tensor that is laid out like unit `unit`: the unit's own
  // dtype, or another of at most 4 bytes. The result stays until the next Gather or OwnPart. Collective.
  absl::Status Gather(int unit, const Tensor& shard);

  // Gather in two steps, without its copy: OwnPart returns this rank's part of the buffer, which work on stream()
  // fills; GatherOwnPart then all-gathers. GatherOwnPart is collective.
  absl::StatusOr<Tensor> OwnPart(int unit, DType dtype);
  void GatherOwnPart();

  // All elements of parameter `index` of the unit gathered last, for the host to read after Synchronize and before the
  // next Gather: a view of the buffer, or a copy in a second buffer if the elements are in pieces or on a GPU.
  absl::StatusOr<Tensor> HostView(size_t index);

  // A copy, in the given form (not kLocal), of parameter `index` of the unit gathered last; without shards if this rank
  // gets no elements.
  absl::StatusOr<ShardedTensor> Extract(size_t index, const StateForm& form);

  // Copies elements `wanted` of that parameter to `out`, in host memory if `to_host`, else on the device.
  void CopyOut(size_t index, const Interval& wanted, const Tensor& out, bool to_host);

  // destination = source, converted, in stream order; either may be on the device or in host memory.
  absl::Status Copy(const Tensor& source, const Tensor& destination);

  // A copy of `source`, in host memory or on the device.
  absl::StatusOr<Tensor> CopyOf(const Tensor& source, bool to_host);

  // Waits for everything issued.
  absl::Status Synchronize() { return stream_->Synchronize(); }

  const AllRanks& ranks() const { return ranks_; }
  Device& device() const { return units_.device(); }
  Stream& stream() { return *stream_; }

 private:
  explicit StateGather(const UnitStore& units) : units_(units), ranks_(units.groups()) {}

  absl::Status Reserve(Buffer& buffer, bool on_host);

  const UnitStore& units_;
  const AllRanks ranks_;
  Buffer buffer_;    // of the largest unit
  Buffer staging_;   // likewise, in host memory
  Tensor gathered_;  // [shard_world_size * shard_numel] of unit_, in buffer_
  int unit_ = -1;
  std::unique_ptr<Stream> stream_;  // last, so that it ends before the memory it uses goes
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_STATE_GATHER_H_
