// SPDX-License-Identifier: Apache-2.0
//
// The way of one parameter out of its shards:
//
//   shard --copy--> own part of buffer_ --all-gather--> buffer_: all shards --CopyOut--> a parameter, whole or a chunk
//
// After the all-gather a parameter may be in pieces, one or more in each rank's shard. ShardLayout lists them, for all
// layouts, so CopyOut is a list of interval copies and knows no other rule; a chunk along dimension 0 is an interval
// too. All units share one buffer, of the size of the largest, and everything is put on one stream, so the next unit's
// all-gather waits for the copies of the last without an event.
//
// A unit that is not sharded is read in place: gathered_ is its shard, and nothing is copied or communicated.
//
// A part of a larger tensor takes two more steps, on every rank, since another rank may be the one that receives:
//
//   buffer_ --copy--> own part of parts_ --all-gather over tensor parallelism--> parts_ --CopyOut, run by run--> whole
#include "fsdp/fsdp/state/state_gather.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/row_copy.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// True if gathered_ is the shard of an offloaded unit itself: see Gather.
bool ReadsHost(const Unit& unit) { return unit.offloaded() && !unit.sharded(); }

}  // namespace

ProcessGroup* ChunkGroup(const Unit& unit) {
  if (unit.groups.shard) return unit.groups.shard.get();
  return unit.layout.is_flat() ? unit.groups.replicate.get() : nullptr;
}

// Chunks that are cut over the replicate group have no copies.
ChunkPlace ChunkPlaceOf(const Unit& unit, size_t index) {
  const ProcessGroup* const group = ChunkGroup(unit);
  const int size = group == nullptr ? 1 : group->size(), place = group == nullptr ? 0 : group->rank();
  const int ranks = unit.groups.tensor_parallel_size();
  const int rank = unit.groups.tensor_parallel_rank();
  const bool has_replicas = unit.groups.replicate != nullptr && group != unit.groups.replicate.get();
  const int replica = has_replicas ? unit.groups.replicate->rank() : 0;
  if (unit.parameters[index]->part) return {size * ranks, place * ranks + rank, replica};
  return {size, place, replica * ranks + rank};
}

int ShardReplica(const Unit& unit, size_t index) {
  const int replica = unit.groups.replicate ? unit.groups.replicate->rank() : 0;
  if (unit.parameters[index]->part) return replica;
  return replica * unit.groups.tensor_parallel_size() + unit.groups.tensor_parallel_rank();
}

absl::StatusOr<std::unique_ptr<StateGather>> StateGather::Create(const UnitStore& units) {
  std::unique_ptr<StateGather> gather(new StateGather(units));
  FSDP_ASSIGN_OR_RETURN(gather->stream_, units.device().CreateStream("state_dict"));
  gather->packs_ = std::make_unique<HostPacks>(*gather->stream_);
  return gather;
}

// Room for the largest unit, in its own dtype or in float32, to which narrower tensors may be gathered.
absl::Status StateGather::Reserve(Buffer& buffer, bool on_host) {
  if (buffer) return absl::OkStatus();
  int64_t nbytes = 0;
  for (const auto& unit : units_.units()) {
    const int64_t itemsize = std::max<int64_t>(SizeOf(unit->dtype), SizeOf(DType::kFloat32));
    nbytes = std::max(nbytes, unit->layout.padded_numel() * itemsize);
  }
  if (&buffer != &buffer_) nbytes *= units_.is_tensor_parallel() ? units_.groups().tensor_parallel()->size() : 1;
  FSDP_ASSIGN_OR_RETURN(buffer, on_host ? device().AllocatePinned(nbytes) : device().Allocate(nbytes));
  return absl::OkStatus();
}

absl::Status StateGather::Synchronize() {
  FSDP_RETURN_IF_ERROR(packs_->Flush());
  return stream_->Synchronize();
}

absl::StatusOr<Tensor> StateGather::OwnPart(int u, DType dtype) {
  FSDP_RETURN_IF_ERROR(packs_->Flush());  // copies of the buffer that is written next
  FSDP_RETURN_IF_ERROR(Reserve(buffer_, /*on_host=*/false));
  const Unit& unit = units_.unit(u);
  const int64_t padded = unit.layout.padded_numel();
  unit_ = u;
  gathered_ = Tensor(buffer_.Slice(0, padded * SizeOf(dtype)), dtype, {padded});
  const int64_t begin = unit.groups.shard_rank() * unit.layout.shard_numel();
  return gathered_.Slice({begin, begin + unit.layout.shard_numel()});
}

absl::Status StateGather::GatherOwnPart() {
  const Unit& unit = units_.unit(unit_);
  if (unit.sharded()) {
    const int64_t begin = unit.groups.shard_rank() * unit.layout.shard_numel();
    unit.groups.shard->AllGather(gathered_.Slice({begin, begin + unit.layout.shard_numel()}), gathered_, *stream_);
  }
  return GatherParts();
}

absl::Status StateGather::GatherParts() {
  FSDP_RETURN_IF_ERROR(packs_->Flush());
  const Unit& unit = units_.unit(unit_);
  parts_.assign(unit.parameters.size(), Tensor());
  if (!units_.is_tensor_parallel()) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(Reserve(parts_buffer_, /*on_host=*/false));
  const UnitGroups& groups = unit.groups;
  int64_t at = 0;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    if (!unit.parameters[i]->part) continue;
    const int64_t numel = unit.parameters[i]->shape.numel();
    const int64_t all = numel * groups.tensor_parallel_size();
    const int64_t itemsize = SizeOf(gathered_.dtype());
    parts_[i] = Tensor(parts_buffer_.Slice(at * itemsize, all * itemsize), gathered_.dtype(), {all});
    at += all;
    const Tensor own =
        parts_[i].Slice({numel * groups.tensor_parallel_rank(), numel * (groups.tensor_parallel_rank() + 1)});
    RunCopies(gathered_, own, CopiesOf(i, {0, numel}), ReadsHost(unit));
    groups.tensor_parallel->AllGather(own, parts_[i], *stream_);
  }
  return absl::OkStatus();
}

absl::Status StateGather::Gather(int u, const Tensor& shard) {
  if (!units_.unit(u).sharded()) {
    unit_ = u;
    gathered_ = shard;
    return GatherParts();
  }
  // Copied to the own part first: collectives take device memory, and the shard of an offloaded unit is in host memory.
  FSDP_ASSIGN_OR_RETURN(const Tensor own, OwnPart(u, shard.dtype()));
  FSDP_RETURN_IF_ERROR(Copy(shard, own));
  return GatherOwnPart();
}

// On a CPU device, a parameter of a flat layout is in one piece that the host can read, so nothing is copied.
absl::StatusOr<Tensor> StateGather::HostView(size_t index) {
  const ShardLayout& layout = units_.unit(unit_).layout;
  const ShardLayout::Entry& entry = layout.parameters()[index];
  const bool is_part = parts_[index].defined();
  if (!is_part && layout.in_place() && device().type() == DeviceType::kCpu) {
    return gathered_.Slice({entry.offset, entry.offset + entry.shape.numel()});
  }
  const int64_t itemsize = SizeOf(gathered_.dtype());
  const int64_t numel = units_.unit(unit_).parameters[index]->whole_shape().numel();
  Tensor from;
  std::vector<IntervalCopy> copies = CopiesTo(index, {0, numel}, from);
  if (packs_->Takes(from, numel * itemsize)) return packs_->Add(from, std::move(copies), numel);
  FSDP_RETURN_IF_ERROR(Reserve(staging_, /*on_host=*/true));
  const int64_t offset = entry.offset * units_.unit(unit_).groups.tensor_parallel_size();  // room for whole tensors
  const Tensor staged(staging_.Slice(offset * itemsize, numel * itemsize), gathered_.dtype(), {numel});
  CopyOut(index, {0, numel}, staged, /*to_host=*/true);
  return staged;
}

// From gathered_: elements count in the parameter as the module has it.
std::vector<IntervalCopy> StateGather::CopiesOf(size_t index, const Interval& wanted) const {
  const ShardLayout& layout = units_.unit(unit_).layout;
  std::vector<IntervalCopy> copies;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    for (const ShardLayout::Slice& slice : layout.ShardRuns(index, rank)) {
      const Interval part = Intersect(slice.interval, wanted);
      if (part.empty()) continue;
      const int64_t at = rank * layout.shard_numel() + slice.offset_in_shard + part.begin - slice.interval.begin;
      copies.push_back({at, part.begin - wanted.begin, part.size()});
    }
  }
  return copies;
}

// From parts_[index].
std::vector<IntervalCopy> StateGather::CopiesOfParts(size_t index, const Interval& wanted) const {
  const Parameter& parameter = *units_.unit(unit_).parameters[index];
  const int64_t numel = parameter.shape.numel();
  std::vector<IntervalCopy> copies;
  for (int rank = 0; rank < units_.unit(unit_).groups.tensor_parallel_size(); ++rank) {
    ParameterPart part = *parameter.part;
    part.begin = rank * parameter.shape.dim(part.dim);
    for (const IntervalCopy& run : RunsInWhole(parameter.shape, part, {0, numel})) {
      const Interval common = Intersect({run.to, run.to + run.numel}, wanted);
      if (common.empty()) continue;
      copies.push_back({rank * numel + run.from + common.begin - run.to, common.begin - wanted.begin, common.size()});
    }
  }
  return copies;
}

// The kernel reads and writes only device memory; if one side is host memory, each piece is a copy on the stream.
void StateGather::RunCopies(const Tensor& from, const Tensor& out, std::vector<IntervalCopy> copies,
                            bool over_memories) {
  if (!over_memories) return CopyIntervals(from, out, std::move(copies), 1, device().ops(), *stream_);
  const int64_t itemsize = SizeOf(out.dtype());
  for (const IntervalCopy& copy : copies) {
    stream_->CopyAsync(out.buffer().data() + copy.to * itemsize, from.buffer().data() + copy.from * itemsize,
                       copy.numel * itemsize);
  }
  stream_->Run([out, from] { return absl::OkStatus(); });  // holds both until the copies have run
}

// The copies that make elements `wanted` of parameter `index`, and the tensor that they read.
std::vector<IntervalCopy> StateGather::CopiesTo(size_t index, const Interval& wanted, Tensor& from) const {
  const bool in_parts = parts_[index].defined();
  from = in_parts ? parts_[index] : gathered_;
  return in_parts ? CopiesOfParts(index, wanted) : CopiesOf(index, wanted);
}

void StateGather::CopyOut(size_t index, const Interval& wanted, const Tensor& out, bool to_host) {
  Tensor from;
  std::vector<IntervalCopy> copies = CopiesTo(index, wanted, from);
  const bool over_memories = parts_[index].defined() ? to_host && device().type() != DeviceType::kCpu
                                                     : to_host || ReadsHost(units_.unit(unit_));
  RunCopies(from, out, std::move(copies), over_memories);
}

void StateGather::CopyOutOwn(size_t index, const Tensor& out, bool to_host) {
  const Unit& unit = units_.unit(unit_);
  const Interval all{0, unit.parameters[index]->shape.numel()};
  RunCopies(gathered_, out, CopiesOf(index, all), to_host || ReadsHost(unit));
}

absl::StatusOr<ShardedTensor> StateGather::Extract(size_t index, const StateForm& form) {
  const Unit& unit = units_.unit(unit_);
  ShardedTensor result;
  result.dtype = gathered_.dtype();
  result.shape = unit.parameters[index]->whole_shape();
  Interval wanted{0, result.shape.numel()};
  if (form.type == StateDictType::kSharded) {
    const ChunkPlace place = ChunkPlaceOf(unit, index);
    wanted = place.Of(result.shape);
    result.replica = place.replica;
  } else {
    result.replica = ranks_.rank();
  }
  if (wanted.empty() || !form.ReceivedBy(ranks_.rank())) return result;
  const int64_t nbytes = wanted.size() * SizeOf(result.dtype);
  const bool to_host = form.offload_to_cpu || result.shape.rank() == 0;  // scalars are read by the host
  Tensor from;
  std::vector<IntervalCopy> copies = CopiesTo(index, wanted, from);
  if (to_host && packs_->Takes(from, nbytes)) {
    FSDP_ASSIGN_OR_RETURN(Tensor packed, packs_->Add(from, std::move(copies), wanted.size()));
    result.shards.push_back({wanted, std::move(packed)});
    return result;
  }
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

absl::Status StateGather::CopyAll(const std::vector<TensorCopy>& copies) {
  std::vector<TensorCopy> on_device;
  for (const TensorCopy& copy : copies) {
    const bool stays = copy.source.device() == device().id() && copy.destination.device() == device().id();
    if (stays && copy.source.dtype() == copy.destination.dtype()) {
      on_device.push_back(copy);
    } else {
      FSDP_RETURN_IF_ERROR(Copy(copy.source, copy.destination));
    }
  }
  if (!on_device.empty()) device().ops().CopyTensors(std::move(on_device), *stream_);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> StateGather::CopyOf(const Tensor& source, bool to_host) {
  if (to_host && packs_->Takes(source, source.nbytes())) {
    FSDP_ASSIGN_OR_RETURN(const Tensor packed,
                          packs_->Add(source, {IntervalCopy{0, 0, source.numel()}}, source.numel()));
    return packed.View(source.shape());
  }
  FSDP_ASSIGN_OR_RETURN(Buffer buffer,
                        to_host ? device().AllocatePinned(source.nbytes()) : device().Allocate(source.nbytes()));
  Tensor copy(std::move(buffer), source.dtype(), source.shape());
  FSDP_RETURN_IF_ERROR(Copy(source, copy));
  return copy;
}

}  // namespace fsdp
