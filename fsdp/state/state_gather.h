// SPDX-License-Identifier: Apache-2.0
//
// StateGather: from a unit's shards to whole parameters or dim-0 chunks; state_scatter.h is the way back. One way for
// parameters and for every optimizer state, since these are sharded alike. Works unit by unit in one buffer, so that
// memory beyond the result is one unsharded unit. Blocks nowhere but in Synchronize.
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

// The ranks over which a unit's SHARDED state is cut: its shard group; all ranks where it has none.
ProcessGroup& ChunkGroup(const Unit& unit);

// Which copy this rank holds of what is cut over ChunkGroup, and of what its shard has.
int ChunkReplica(const Unit& unit);
int ShardReplica(const Unit& unit);

class StateGather {
 public:
  // `units` must outlive it. Takes the buffer at the first Gather.
  static absl::StatusOr<std::unique_ptr<StateGather>> Create(const UnitStore& units);

  // All-gathers `shard`, one rank's [shard_numel] part of unit `unit`, of at most 4 bytes an element or the unit's own
  // dtype. It stays gathered until the next call. Collective.
  absl::Status Gather(int unit, const Tensor& shard);

  // The same in two steps, with nothing to copy: this rank's part of the buffer, for work on stream() to fill, and then
  // the gathering.
  absl::StatusOr<Tensor> OwnPart(int unit, DType dtype);
  void GatherOwnPart();

  // All of parameter `index` of the unit gathered last, for the host to read after Synchronize and before the next
  // Gather: where it lies, or staged in a second buffer of one unit where it lies in pieces or on another device.
  absl::StatusOr<Tensor> HostView(size_t index);

  // A copy, in the given form (not kLocal), of parameter `index` of the unit gathered last; no shards where this rank
  // gets nothing.
  absl::StatusOr<ShardedTensor> Extract(size_t index, const StateForm& form);

  // Puts elements `wanted` of that parameter at `out`, in host memory or on the device.
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
