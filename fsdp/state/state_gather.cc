// SPDX-License-Identifier: Apache-2.0
//
// The way of one parameter out of its shards:
//
//   shard --copy--> own part of buffer_ --all-gather--> buffer_: all shards --CopyOut--> a parameter, whole or a chunk
//
// After the all-gather a parameter may lie in pieces, one in each rank's shard. ShardLayout says which, for both
// layouts, so CopyOut is a list of interval copies and knows no other rule; a chunk along dimension 0 is an interval
// too. All units share one buffer, of the size of the largest, and everything is put on one stream, so the next unit's
// all-gather waits for the copies of the last without an event.
//
// A unit that is not sharded is read where it is: gathered_ is its shard, and nothing is copied or communicated.
#include "fsdp/fsdp/state/state_gather.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {

ProcessGroup& ChunkGroup(const Unit& unit) { return unit.groups.shard ? *unit.groups.shard : *unit.groups.replicate; }

// Without a shard group, chunks are cut over the replicate group, so no chunk has a copy.
int ChunkReplica(const Unit& unit) {
  return unit.groups.shard && unit.groups.replicate ? unit.groups.replicate->rank() : 0;
}

int ShardReplica(const Unit& unit) { return unit.groups.replicate ? unit.groups.replicate->rank() : 0; }

absl::StatusOr<std::unique_ptr<StateGather>> StateGather::Create(const UnitStore& units) {
  std::unique_ptr<StateGather> gather(new StateGather(units));
  FSDP_ASSIGN_OR_RETURN(gather->stream_, units.device().CreateStream("state_dict"));
  return gather;
}

// Room for the largest unit, in its own dtype or in float32, that of optimizer states.
absl::Status StateGather::Reserve(Buffer& buffer, bool on_host) {
  if (buffer) return absl::OkStatus();
  int64_t nbytes = 0;
  for (const auto& unit : units_.units()) {
    const int64_t itemsize = std::max<int64_t>(SizeOf(unit->dtype), SizeOf(DType::kFloat32));
    nbytes = std::max(nbytes, unit->layout.padded_numel() * itemsize);
  }
  FSDP_ASSIGN_OR_RETURN(buffer, on_host ? device().AllocatePinned(nbytes) : device().Allocate(nbytes));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> StateGather::OwnPart(int u, DType dtype) {
  FSDP_RETURN_IF_ERROR(Reserve(buffer_, /*on_host=*/false));
  const Unit& unit = units_.unit(u);
  const int64_t padded = unit.layout.padded_numel();
  unit_ = u;
  gathered_ = Tensor(buffer_.Slice(0, padded * SizeOf(dtype)), dtype, {padded});
  const int64_t begin = unit.groups.shard_rank() * unit.layout.shard_numel();
  return gathered_.Slice({begin, begin + unit.layout.shard_numel()});
}

void StateGather::GatherOwnPart() {
  const Unit& unit = units_.unit(unit_);
  if (!unit.sharded()) return;
  const int64_t begin = unit.groups.shard_rank() * unit.layout.shard_numel();
  unit.groups.shard->AllGather(gathered_.Slice({begin, begin + unit.layout.shard_numel()}), gathered_, *stream_);
}

absl::Status StateGather::Gather(int u, const Tensor& shard) {
  if (!units_.unit(u).sharded()) {
    unit_ = u;
    gathered_ = shard;
    return absl::OkStatus();
  }
  // Copied to the own part first: collectives take device memory, and the shard of an offloaded unit is in host memory.
  FSDP_ASSIGN_OR_RETURN(const Tensor own, OwnPart(u, shard.dtype()));
  FSDP_RETURN_IF_ERROR(Copy(shard, own));
  GatherOwnPart();
  return absl::OkStatus();
}

// On a CPU device, a parameter of a flat layout is in one piece that the host can read, so nothing is copied.
absl::StatusOr<Tensor> StateGather::HostView(size_t index) {
  const ShardLayout& layout = units_.unit(unit_).layout;
  const ShardLayout::Entry& entry = layout.parameters()[index];
  if (layout.in_place() && device().type() == DeviceType::kCpu) {
    return gathered_.Slice({entry.offset, entry.offset + entry.shape.numel()});
  }
  FSDP_RETURN_IF_ERROR(Reserve(staging_, /*on_host=*/true));
  const int64_t itemsize = SizeOf(gathered_.dtype());
  const Tensor staged(staging_.Slice(entry.offset * itemsize, entry.shape.numel() * itemsize), gathered_.dtype(),
                      {entry.shape.numel()});
  CopyOut(index, {0, entry.shape.numel()}, staged, /*to_host=*/true);
  return staged;
}

void StateGather::CopyOut(size_t index, const Interval& wanted, const Tensor& out, bool to_host) {
  const Unit& unit = units_.unit(unit_);
  const ShardLayout& layout = unit.layout;
  const int64_t itemsize = SizeOf(out.dtype());
  std::vector<IntervalCopy> copies;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const ShardLayout::Slice slice = layout.ShardSlice(index, rank);
    const Interval part = Intersect(slice.interval, wanted);
    if (part.empty()) continue;
    const int64_t at = rank * layout.shard_numel() + slice.offset_in_shard + part.begin - slice.interval.begin;
    copies.push_back({at, part.begin - wanted.begin, part.size()});
  }
  const bool from_host = unit.offloaded() && !unit.sharded();  // see Gather
  // The kernel reads and writes device memory; where one side is host memory, each piece is a copy on the stream.
  if (!to_host && !from_host) return device().ops().CastDivideIntervals(gathered_, out, std::move(copies), 1, *stream_);
  for (const IntervalCopy& copy : copies) {
    stream_->CopyAsync(out.buffer().data() + copy.to * itemsize, gathered_.buffer().data() + copy.from * itemsize,
                       copy.numel * itemsize);
  }
  stream_->Run([out, from = gathered_] { return absl::OkStatus(); });  // holds both until the copies have run
}

absl::StatusOr<ShardedTensor> StateGather::Extract(size_t index, const StateForm& form) {
  const Unit& unit = units_.unit(unit_);
  ShardedTensor result;
  result.dtype = gathered_.dtype();
  result.shape = unit.layout.parameters()[index].shape;
  Interval wanted{0, result.shape.numel()};
  if (form.type == StateDictType::kSharded) {
    wanted = Dim0Chunk(result.shape, ChunkGroup(unit).size(), ChunkGroup(unit).rank());
    result.replica = ChunkReplica(unit);
  } else {
    result.replica = ranks_.rank();
  }
  if (wanted.empty() || !form.ReceivedBy(ranks_.rank())) return result;
  const int64_t nbytes = wanted.size() * SizeOf(result.dtype);
  const bool to_host = form.offload_to_cpu || result.shape.rank() == 0;  // scalars are read by the host
  FSDP_ASSIGN_OR_RETURN(Buffer buffer, to_host ? device().AllocatePinned(nbytes) : device().Allocate(nbytes));
  const Tensor copy(std::move(buffer), result.dtype, {wanted.size()});
  CopyOut(index, wanted, copy, to_host);
  result.shards.push_back({wanted, copy});
  return result;
}

absl::Status StateGather::Copy(const Tensor& source, const Tensor& destination) {
  Tensor from = source;
  if (source.dtype() != destination.dtype()) {
    // The cast is a kernel, which takes only device memory, and either side may be in host memory.
    FSDP_ASSIGN_OR_RETURN(const Tensor staged, Tensor::Empty(device(), source.dtype(), source.shape()));
    FSDP_ASSIGN_OR_RETURN(from, Tensor::Empty(device(), destination.dtype(), source.shape()));
    stream_->CopyAsync(staged.data(), source.data(), source.nbytes());
    device().ops().CastDivide(staged, from, 1, *stream_);
  }
  stream_->CopyAsync(destination.data(), from.data(), from.nbytes());
  stream_->Run([source, from, destination] { return absl::OkStatus(); });  // holds them until the copies have run
  return absl::OkStatus();
}

absl::StatusOr<Tensor> StateGather::CopyOf(const Tensor& source, bool to_host) {
  FSDP_ASSIGN_OR_RETURN(Buffer buffer,
                        to_host ? device().AllocatePinned(source.nbytes()) : device().Allocate(source.nbytes()));
  Tensor copy(std::move(buffer), source.dtype(), source.shape());
  FSDP_RETURN_IF_ERROR(Copy(source, copy));
  return copy;
}

}  // namespace fsdp
