// SPDX-License-Identifier: Apache-2.0
#include "fsdp/flat_layout.h"

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

constexpr int64_t kAlignmentBytes = 16;  // _flat_param.py: _get_aligned_numel

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

FlatLayout::FlatLayout(std::vector<Entry> parameters, const FlatLayoutOptions& options)
    : parameters_(std::move(parameters)), world_size_(options.world_size) {
  const int64_t alignment = options.align_parameters ? kAlignmentBytes / SizeOf(options.forward_dtype) : 1;
  int64_t end = 0;
  for (Entry& entry : parameters_) {
    entry.offset = RoundUp(end, alignment);
    end = entry.offset + entry.shape.numel();
  }
  unsharded_numel_ = options.align_parameters ? RoundUp(end, world_size_) : end;
  shard_numel_ = RoundUp(unsharded_numel_, world_size_) / world_size_;
}

int64_t FlatLayout::ShardPadding(int rank) const {
  const int64_t valid = std::clamp<int64_t>(unsharded_numel_ - rank * shard_numel_, 0, shard_numel_);
  return shard_numel_ - valid;
}

FlatLayout::Slice FlatLayout::ShardSlice(size_t index, int rank) const {
  const Entry& entry = parameters_[index];
  const Interval shard{rank * shard_numel_, (rank + 1) * shard_numel_};
  const Interval common = Intersect({entry.offset, entry.offset + entry.shape.numel()}, shard);
  if (common.empty()) return Slice();
  return {{common.begin - entry.offset, common.end - entry.offset}, common.begin - shard.begin};
}

FlatUnitLayout FlatLayout::ToUnitLayout(std::string unit_name) const {
  FlatUnitLayout layout;
  layout.name = std::move(unit_name);
  layout.unsharded_numel = unsharded_numel_;
  for (const Entry& entry : parameters_) {
    layout.parameters.push_back({entry.fqn, entry.offset, entry.shape.numel()});
  }
  return layout;
}

}  // namespace fsdp
