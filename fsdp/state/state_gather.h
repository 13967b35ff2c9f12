// SPDX-License-Identifier: Apache-2.0
//
// StateGather: makes whole parameters or dim-0 chunks of a unit's shards; state_scatter.h is the reverse. Parameters
// and optimizer states are sharded alike, so the same code gathers both. Works unit by unit in one buffer, so that
// memory beyond the result is one unsharded unit. Only Synchronize blocks. Small tensors go from a GPU to the host
// together (host_packs.h).
//
// Parameters that are parts of larger tensors are gathered whole, over the ranks of tensor parallelism too, so their
// chunks and wholes are intervals like any tensor's, however their columns were cut: a state never lists the runs of a
// column cut. Memory is one unsharded unit more, with the whole tensors.
#ifndef FSDP_FSDP_STATE_STATE_GATHER_H_
#define FSDP_FSDP_STATE_STATE_GATHER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/state/host_packs.h"
#include "fsdp/fsdp/state/state_form.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/sharded_tensor.h"

namespace fsdp {

// The group over which a unit's SHARDED state is cut: its shard group; if it is not sharded, the group of all ranks.
// Null for a unit of rows (FSDP2) that is not sharded: every rank has its tensors whole, as the live ones are.
ProcessGroup* ChunkGroup(const Unit& unit);

// The dim-0 chunk of a tensor that this rank has in a SHARDED state. A part of a larger tensor (Parameter::part) is cut
// over the chunk group, if there is one, and the ranks of tensor parallelism together: chunk rank * T + t of rank
// `rank` of the chunk group and rank t of T. These T ranks hold copies of all other parameters.
struct ChunkPlace {
  int count = 1;
  int index = 0;
  int replica = 0;  // ShardedTensor::replica

  Interval Of(const Shape& shape) const { return Dim0Chunk(shape, count, index); }
};
ChunkPlace ChunkPlaceOf(const Unit& unit, size_t index);

// Equal shards exist on several ranks of a hybrid model, and of one with tensor parallelism: which of the copies,
// counted from 0, of its slice of parameter `index` this rank holds. See ShardedTensor::replica.
int ShardReplica(const Unit& unit, size_t index);

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
  absl::Status GatherOwnPart();

  // All elements of parameter `index`, whole, of the unit gathered last, for the host to read after Synchronize and
  // before the next Gather: a view of the buffer, or a copy in a second buffer if the elements are in pieces or on a
  // GPU.
  absl::StatusOr<Tensor> HostView(size_t index);

  // A copy, in the given form (not kLocal), of parameter `index` of the unit gathered last; without shards if this rank
  // gets no elements.
  absl::StatusOr<ShardedTensor> Extract(size_t index, const StateForm& form);

  // Copies elements `wanted` of that parameter to `out`, in host memory if `to_host`, else on the device.
  // Elements count in the whole tensor.
  void CopyOut(size_t index, const Interval& wanted, const Tensor& out, bool to_host);

  // All elements of that parameter as the module has it, which is a part of a larger tensor under tensor parallelism.
  void CopyOutOwn(size_t index, const Tensor& out, bool to_host);

  // destination = source, converted, in stream order; either may be on the device or in host memory.
  absl::Status Copy(const Tensor& source, const Tensor& destination);

  // The same for many, of which no two overlap: few launches for those within the device's memory.
  absl::Status CopyAll(const std::vector<TensorCopy>& copies);

  // A copy of `source`, in host memory or on the device. `source` must stay as it is until Synchronize.
  absl::StatusOr<Tensor> CopyOf(const Tensor& source, bool to_host);

  // Waits for everything issued.
  absl::Status Synchronize();

  const AllRanks& ranks() const { return ranks_; }
  Device& device() const { return units_.device(); }
  Stream& stream() { return *stream_; }

 private:
  explicit StateGather(const UnitStore& units) : units_(units), ranks_(units.groups()) {}

  absl::Status Reserve(Buffer& buffer, bool on_host);
  absl::Status GatherParts();
  std::vector<IntervalCopy> CopiesOf(size_t index, const Interval& wanted) const;
  std::vector<IntervalCopy> CopiesOfParts(size_t index, const Interval& wanted) const;
  std::vector<IntervalCopy> CopiesTo(size_t index, const Interval& wanted, Tensor& from) const;
  void RunCopies(const Tensor& from, const Tensor& out, std::vector<IntervalCopy> copies, bool over_memories);

  const UnitStore& units_;
  const AllRanks ranks_;
  Buffer buffer_;   // of the largest unit
  Buffer staging_;  // likewise, in host memory, for whole tensors
  Buffer parts_buffer_;
  Tensor gathered_;  // [shard_world_size * shard_numel] of unit_, in buffer_
  // By parameter of unit_: [T, numel] of a part of a larger tensor, from all ranks of tensor parallelism, in
  // parts_buffer_; undefined for others.
  std::vector<Tensor> parts_;
  int unit_ = -1;
  std::unique_ptr<HostPacks> packs_;
  std::unique_ptr<Stream> stream_;  // last, so that it ends before the memory it uses goes
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_STATE_GATHER_H_
