// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state_gather.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "tensor/ops.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<StateGather>> StateGather::Create(const UnitStore& units, ProcessGroup& group) {
  std::unique_ptr<StateGather> gather(new StateGather(units, group));
  int64_t nbytes = 0;
  for (const auto& unit : units.units()) {
    nbytes = std::max(nbytes, unit->layout.padded_numel() * SizeOf(unit->dtype));
  }
  ASSIGN_OR_RETURN(gather->stream_, group.device()->CreateStream("state_dict"));
  ASSIGN_OR_RETURN(gather->buffer_, group.device()->Allocate(nbytes));
  return gather;
}

void StateGather::Gather(int unit, const Tensor& shard) {
  unit_ = unit;
  const int64_t padded = units_.unit(unit).layout.padded_numel();
  gathered_ = Tensor(buffer_.Slice(0, padded * SizeOf(shard.dtype())), shard.dtype(), {padded});
  const Unit& gathering = units_.unit(unit);
  if (gathering.sharded()) {
    gathering.groups.shard->AllGather(shard, gathered_, *stream_);
  } else {
    group_.device()->ops().CastDivide(shard, gathered_, 1, *stream_);
  }
}

absl::StatusOr<Tensor> StateGather::CopyOf(const Tensor& source, bool to_host) {
  Device& device = *group_.device();
  ASSIGN_OR_RETURN(Buffer buffer, to_host ? device.AllocatePinned(source.nbytes()) : device.Allocate(source.nbytes()));
  Tensor copy(std::move(buffer), source.dtype(), source.shape());
  stream_->CopyAsync(copy.data(), source.data(), source.nbytes());
  stream_->Run([source, copy] { return absl::OkStatus(); });  // holds both until the copy ran
  return copy;
}

absl::StatusOr<ShardedTensor> StateGather::Extract(size_t index, const GatherForm& form) {
  const ShardLayout::Entry& entry = units_.unit(unit_).layout.parameters()[index];
  ShardedTensor result;
  result.dtype = gathered_.dtype();
  result.shape = entry.shape;
  Interval wanted{0, entry.shape.numel()};
  if (form.type == StateDictType::kSharded) {
    wanted = Dim0Chunk(entry.shape, group_.size(), group_.rank());
  } else {
    result.replica = group_.rank();
  }
  if (wanted.empty() || !Receives(form)) return result;
  const Tensor source = gathered_.Slice({entry.offset + wanted.begin, entry.offset + wanted.end});
  ASSIGN_OR_RETURN(Tensor copy, CopyOf(source, form.offload_to_cpu));
  result.shards.push_back({wanted, std::move(copy)});
  return result;
}

absl::Status StateGather::Scatter(int unit, size_t index, const ShardedTensor& source, StateDictType type,
                                  const Tensor& destination) {
  const TensorOps& ops = group_.device()->ops();
  const Interval mine = units_.unit(unit).sharded_parameters[index]->interval;
  Tensor whole;
  if (type == StateDictType::kFull) {
    whole = source.shards.empty() ? Tensor() : source.shards[0].data;
  } else {
    // Chunks begin at multiples of the first one's size, so the padded chunks side by side are the whole tensor.
    const int64_t chunk = Dim0Chunk(source.shape, group_.size(), 0).size();
    const int64_t itemsize = SizeOf(destination.dtype());
    ASSIGN_OR_RETURN(Buffer buffer, group_.device()->Allocate(chunk * group_.size() * itemsize));
    whole = Tensor(std::move(buffer), destination.dtype(), {chunk * group_.size()});
    const Tensor own = whole.Slice({group_.rank() * chunk, (group_.rank() + 1) * chunk});
    ops.Zero(own, *stream_);
    if (!source.shards.empty()) {
      const Tensor& data = source.shards[0].data;
      ops.CastDivide(data, own.Slice({0, data.numel()}), 1, *stream_);
    }
    group_.AllGather(own, whole, *stream_);
  }
  if (!mine.empty()) ops.CastDivide(whole.Slice(mine), destination, 1, *stream_);
  return absl::OkStatus();
}

}  // namespace fsdp
