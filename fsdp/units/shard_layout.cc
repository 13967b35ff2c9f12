// SPDX-License-Identifier: Apache-2.0
//
// Flat: parameters one after another, then cut into equal shards wherever the cut falls, also within a row. A shard of
// a parameter is then the intersection of two intervals, the parameter's in the buffer and the rank's shard. Packing
// leaves parameters out and keeps the order, so a rank's shard stays one interval.
//
// Dim 0: each parameter is cut by rows first, ceil(rows / ranks) for each rank, so ranks at the end may have fewer or
// none (torch.chunk). Chunks are padded to equal size, which makes every offset a product and every collective even.
// Another dimension is cut evenly, so its chunks need no padding.
#include "fsdp/fsdp/units/shard_layout.h"

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

constexpr int64_t kAlignmentBytes = 16;  // _flat_param.py: _get_aligned_numel

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Elements of one rank's chunk of a parameter of this shape, padding included: the size of the first rank's chunk.
int64_t RowsChunk(const Shape& shape, int world_size) {
  if (shape.numel() == 0) return 0;
  const int64_t rows = shape.dims().empty() ? 1 : shape.dims()[0];
  return RoundUp(rows, world_size) / world_size * (shape.numel() / rows);
}

}  // namespace

ShardLayout::ShardLayout(std::vector<Entry> parameters, const ShardLayoutOptions& options)
    : parameters_(std::move(parameters)), kind_(options.kind), world_size_(options.world_size) {
  if (kind_ == LayoutKind::kFlatAligned) alignment_ = kAlignmentBytes / SizeOf(options.forward_dtype);
  if (is_flat()) {
    LayFlat();
  } else {
    LayDim0();
  }
}

void ShardLayout::LayFlat() {
  int64_t end = 0;
  for (Entry& entry : parameters_) {
    entry.offset = RoundUp(end, alignment_);
    end = entry.offset + entry.shape.numel();
  }
  unsharded_numel_ = kind_ == LayoutKind::kFlatAligned ? RoundUp(end, world_size_) : end;
  shard_numel_ = RoundUp(unsharded_numel_, world_size_) / world_size_;
}

// A shard that begins within a kept parameter begins at the same element of it; any other begins with the next kept
// parameter.
ShardLayout ShardLayout::Packed(const std::vector<bool>& kept) const {
  ShardLayout packed = *this;
  packed.unsharded_numel_ = packed.shard_numel_ = 0;
  packed.packed_shards_ = {0};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Entry& entry = packed.parameters_[i];
    entry.offset = RoundUp(packed.unsharded_numel_, alignment_);
    if (!kept[i]) {
      entry.shape = Shape{0};
      continue;
    }
    const int64_t begin = parameters_[i].offset, end = begin + entry.shape.numel();
    for (int rank = static_cast<int>(packed.packed_shards_.size()); rank < world_size_; ++rank) {
      const int64_t shard = rank * shard_numel_;
      if (shard >= end) break;
      packed.packed_shards_.push_back(entry.offset + std::max<int64_t>(shard - begin, 0));
    }
    packed.unsharded_numel_ = entry.offset + entry.shape.numel();
  }
  packed.packed_shards_.resize(world_size_ + 1, packed.unsharded_numel_);
  for (int rank = 0; rank < world_size_; ++rank) {
    packed.shard_numel_ = std::max(packed.shard_numel_, packed.ShardInterval(rank).size());
  }
  return packed;
}

// A single rank has every parameter whole.
void ShardLayout::LayDim0() {
  for (Entry& entry : parameters_) {
    if (world_size_ == 1) entry.dim = 0;
    const int64_t numel = entry.dim == 0 ? RowsChunk(entry.shape, world_size_) : entry.shape.numel() / world_size_;
    chunks_.push_back({numel, shard_numel_});
    entry.offset = shard_numel_ * world_size_;
    shard_numel_ += numel;
  }
  unsharded_numel_ = padded_numel();
}

std::vector<IntervalCopy> ShardLayout::ChunkRuns(size_t index, int rank, int ranks) const {
  const Entry& entry = parameters_[index];
  const int64_t numel = chunks_[index].numel * world_size_ / ranks;
  if (entry.dim == 0) return {{rank * numel, 0, numel}};
  int64_t outer = 1;
  for (int d = 0; d < entry.dim; ++d) outer *= entry.shape.dim(d);
  if (outer == 0) return {};
  const int64_t run = numel / outer, row = entry.shape.numel() / outer;
  std::vector<IntervalCopy> runs;
  for (int64_t o = 0; o < outer; ++o) runs.push_back({o * row + rank * run, o * run, run});
  return runs;
}

bool ShardLayout::is_cut_by_rows() const {
  return std::all_of(parameters_.begin(), parameters_.end(), [](const Entry& entry) { return entry.dim == 0; });
}

int64_t ShardLayout::ShardPadding(int rank) const {
  const int64_t valid = std::clamp<int64_t>(unsharded_numel_ - rank * shard_numel_, 0, shard_numel_);
  return shard_numel_ - valid;
}

ShardLayout::Slice ShardLayout::ShardSlice(size_t index, int rank) const {
  const Entry& entry = parameters_[index];
  const int64_t numel = entry.shape.numel();
  if (!is_flat()) {
    const Chunk& chunk = chunks_[index];
    if (entry.dim != 0) return {{0, chunk.numel}, chunk.offset};
    const Interval rows = Intersect({rank * chunk.numel, (rank + 1) * chunk.numel}, {0, numel});
    return rows.empty() ? Slice() : Slice{rows, chunk.offset};
  }
  const Interval shard = ShardInterval(rank);
  const Interval common = Intersect({entry.offset, entry.offset + numel}, shard);
  if (common.empty()) return Slice();
  return {{common.begin - entry.offset, common.end - entry.offset}, common.begin - shard.begin};
}

std::vector<ShardLayout::Slice> ShardLayout::ShardRuns(size_t index, int rank) const {
  const Slice slice = ShardSlice(index, rank);
  if (slice.interval.empty()) return {};
  if (is_cut_by_rows(index)) return {slice};
  std::vector<Slice> runs;
  for (const IntervalCopy& run : ChunkRuns(index, rank, world_size_)) {
    runs.push_back({{run.from, run.from + run.numel}, slice.offset_in_shard + run.to});
  }
  return runs;
}

FlatUnitLayout ShardLayout::ToUnitLayout(std::string unit_name) const {
  FlatUnitLayout layout;
  layout.name = std::move(unit_name);
  layout.unsharded_numel = unsharded_numel_;
  for (const Entry& entry : parameters_) {
    layout.parameters.push_back({entry.fqn, entry.offset, entry.shape.numel()});
  }
  return layout;
}

}  // namespace fsdp
