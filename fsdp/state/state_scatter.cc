// SPDX-License-Identifier: Apache-2.0
//
// The cheapest way for each source; a state dict that a rank already has needs no communication:
//
//   kLocal      copy of the slice
//   kFull       copy of the interval that this rank's slice is
//   kSharded    all-gather of the ranks' chunks to the whole tensor, then that interval of it. Chunks are cut by rows,
//               flat shards are not, so a rank may need elements of several chunks. A chunk that is all of its tensor
//               is copied
//   kFullFirst  broadcast of the whole tensor from rank 0, then that interval of it
//
// A part of a larger tensor is several intervals of it. Its chunks are gathered over the ranks of tensor parallelism
// first, whose chunks are neighbours.
//
// The last two wait in a batch. Tensors of one batch are exchanged as one coalesced call, for each run of equal groups
// in the order in which they were added; the order is the same on all ranks, so the calls match up.
#include "fsdp/fsdp/state/state_scatter.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/coalesced_calls.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

int64_t BytesOfLargest(const UnitStore& units) {
  int64_t nbytes = 0;
  for (const auto& unit : units.units()) {
    nbytes = std::max(nbytes, unit->layout.padded_numel() * SizeOf(unit->dtype));
  }
  return nbytes;
}

// This rank's slice of a parameter, from the whole tensor to the slice.
std::vector<IntervalCopy> WantedRuns(const ShardedParameter& parameter) {
  const Interval& interval = parameter.interval;
  if (interval.empty()) return {};
  if (!parameter.part) return {{interval.begin, 0, interval.size()}};
  std::vector<IntervalCopy> runs = RunsInWhole(parameter.shape, *parameter.part, interval);
  for (IntervalCopy& run : runs) run = {run.to, run.from - interval.begin, run.numel};
  return runs;
}

}  // namespace

StateScatter::StateScatter(const UnitStore& units, StateGather& gather, StateSource from)
    : units_(units), gather_(gather), from_(from), batch_bytes_(BytesOfLargest(units)) {}

absl::Status StateScatter::Add(int u, size_t index, const ShardedTensor& source, const Tensor& destination) {
  const Unit& unit = units_.unit(u);
  const Interval mine = unit.sharded_parameters[index]->interval;
  std::vector<IntervalCopy> wanted = WantedRuns(*unit.sharded_parameters[index]);
  switch (from_) {
    case StateSource::kLocal:
      return mine.empty() ? absl::OkStatus() : gather_.Copy(source.shards[0].data, destination);
    case StateSource::kFull:
      return mine.empty() ? absl::OkStatus() : CopyRuns(source.shards[0].data, wanted, destination);
    case StateSource::kSharded: {
      if (ChunkPlaceOf(unit, index).count == 1) {
        return mine.empty() ? absl::OkStatus() : CopyRuns(source.shards[0].data, wanted, destination);
      }
      FSDP_ASSIGN_OR_RETURN(Item item, FromChunks(unit, index, source, destination.dtype()));
      return Push(std::move(item), std::move(wanted), destination);
    }
    case StateSource::kFullFirst:
      break;
  }
  FSDP_ASSIGN_OR_RETURN(Item item, FromFirst(source, destination.dtype()));
  return Push(std::move(item), std::move(wanted), destination);
}

absl::Status StateScatter::AddReplicated(const ShardedTensor& source, const Tensor& destination) {
  if (destination.numel() == 0) return absl::OkStatus();
  if (from_ != StateSource::kFullFirst) return gather_.Copy(source.shards[0].data, destination);
  FSDP_ASSIGN_OR_RETURN(Item item, FromFirst(source, destination.dtype()));
  return Push(std::move(item), {{0, 0, destination.numel()}}, destination);
}

// Chunk r begins at r times the size of the first, so the padded chunks in sequence are the whole tensor and then
// padding.
absl::StatusOr<StateScatter::Item> StateScatter::FromChunks(const Unit& unit, size_t index, const ShardedTensor& source,
                                                            DType dtype) {
  // Without a chunk group they are chunks of parts, over the ranks of tensor parallelism.
  ProcessGroup* const chunk_group = ChunkGroup(unit);
  ProcessGroup& group = chunk_group != nullptr ? *chunk_group : *unit.groups.tensor_parallel;
  const ChunkPlace place = ChunkPlaceOf(unit, index);
  const int64_t chunk = Dim0Chunk(source.shape, place.count, 0).size();
  FSDP_ASSIGN_OR_RETURN(Tensor whole, Tensor::Empty(gather_.device(), dtype, {chunk * place.count}));
  const Tensor own = whole.Slice({place.index * chunk, (place.index + 1) * chunk});
  gather_.device().ops().Zero(own, gather_.stream());
  if (!source.shards.empty()) {
    const Tensor& data = source.shards[0].data;
    FSDP_RETURN_IF_ERROR(gather_.Copy(data, own.Slice({0, data.numel()})));
  }
  Item item{.group = &group, .whole = whole, .own = own};
  if (place.count == group.size()) return item;
  const int64_t of_rank = place.count / group.size() * chunk;
  item.first = unit.groups.tensor_parallel.get();
  item.chunks = whole.Slice({group.rank() * of_rank, (group.rank() + 1) * of_rank});
  return item;
}

absl::StatusOr<StateScatter::Item> StateScatter::FromFirst(const ShardedTensor& source, DType dtype) {
  FSDP_ASSIGN_OR_RETURN(Tensor whole, Tensor::Empty(gather_.device(), dtype, {source.shape.numel()}));
  if (gather_.ranks().rank() == 0 && whole.numel() > 0)
    FSDP_RETURN_IF_ERROR(gather_.Copy(source.shards[0].data, whole));
  return Item{.whole = std::move(whole)};
}

// Converts at most once: a part of a larger tensor may be many runs.
absl::Status StateScatter::CopyRuns(const Tensor& whole, const std::vector<IntervalCopy>& runs,
                                    const Tensor& destination) {
  Tensor from = whole;
  if (runs.size() > 1 && whole.dtype() != destination.dtype()) {
    FSDP_ASSIGN_OR_RETURN(from, Tensor::Empty(gather_.device(), destination.dtype(), whole.shape()));
    FSDP_RETURN_IF_ERROR(gather_.Copy(whole, from));
  }
  for (const IntervalCopy& run : runs) {
    FSDP_RETURN_IF_ERROR(
        gather_.Copy(from.Slice({run.from, run.from + run.numel}), destination.Slice({run.to, run.to + run.numel})));
  }
  return absl::OkStatus();
}

absl::Status StateScatter::Push(Item item, std::vector<IntervalCopy> wanted, const Tensor& destination) {
  if (nbytes_ > 0 && nbytes_ + item.whole.nbytes() > batch_bytes_) FSDP_RETURN_IF_ERROR(Flush());
  nbytes_ += item.whole.nbytes();
  item.wanted = std::move(wanted);
  item.destination = destination;
  items_.push_back(std::move(item));
  return absl::OkStatus();
}

absl::Status StateScatter::Flush() {
  const std::vector<Item> items = std::exchange(items_, {});
  nbytes_ = 0;
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    const auto is_like_first = [&](const Item& item) {
      return item.group == items[begin].group && item.first == items[begin].first;
    };
    while (end < items.size() && is_like_first(items[end])) ++end;
    Exchange(absl::MakeSpan(items).subspan(begin, end - begin));
  }
  for (const Item& item : items) {
    FSDP_RETURN_IF_ERROR(CopyRuns(item.whole, item.wanted, item.destination));
  }
  return absl::OkStatus();
}

void StateScatter::Exchange(absl::Span<const Item> items) {
  ProcessGroup* const group = items[0].group;
  if (group == nullptr) {
    std::vector<Tensor> wholes;
    for (const Item& item : items) wholes.push_back(item.whole);
    return gather_.ranks().BroadcastFromFirst(wholes, gather_.stream());
  }
  if (items[0].first != nullptr) {
    const CoalescedCalls coalesced(*items[0].first);
    for (const Item& item : items) item.first->AllGather(item.own, item.chunks, gather_.stream());
  }
  const CoalescedCalls coalesced(*group);
  for (const Item& item : items) {
    group->AllGather(item.first == nullptr ? item.own : item.chunks, item.whole, gather_.stream());
  }
}

}  // namespace fsdp
