// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/tree/flat_parts.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/native/format/flat_place.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

// The tensors of one dataset, and the elements of the flat parameter that the rank holds of them.
struct Members {
  int unit = 0;
  DType dtype = DType::kFloat32;
  Interval held;
  std::vector<std::pair<TreeFile::TensorPart*, int64_t>> tensors;  // with their offset in the flat parameter
};

Interval Moved(const Interval& interval, int64_t by) { return {interval.begin + by, interval.end + by}; }

// A flat shard is one run of the flat parameter. So the rank must hold exactly the elements of each tensor that are
// inside members.held; a missing one in the middle would read as zero.
absl::Status CheckIsRun(const Members& members, const FlatUnitLayout& unit) {
  for (const auto& [tensor, offset] : members.tensors) {
    const Interval expected = Intersect(Moved(members.held, -offset), {0, tensor->shape.numel()});
    if (tensor->interval == expected || (tensor->interval.empty() && expected.empty())) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(tensor->key), ": elements ", tensor->interval.ToString(), " are held, but elements ",
        expected.ToString(), " are in this rank's shard of the flat parameter of unit ", Quote(unit.name)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddFlatParts(const std::vector<FlatUnitLayout>& units, TreeFile& tree) {
  const FlatPlaces places(units);
  // Sorted by path, so that equal states give files with datasets in the same order.
  std::map<std::string, Members> datasets;
  for (TreeFile::TensorPart& tensor : tree.tensors) {
    const auto place = places.Find(tensor.key, tensor.shape);
    if (!place) continue;
    Members& members = datasets[FlatDatasetPath(place->unit, tensor.key, tensor.dtype)];
    members.unit = place->unit;
    members.dtype = tensor.dtype;
    members.tensors.emplace_back(&tensor, place->offset);
    if (tensor.interval.empty()) continue;
    const Interval flat = Moved(tensor.interval, place->offset);
    members.held = members.held.empty()
                       ? flat
                       : Interval{std::min(members.held.begin, flat.begin), std::max(members.held.end, flat.end)};
  }
  // Only now are members.held complete, which offsets inside a dataset are relative to.
  for (auto& [path, members] : datasets) {
    const FlatUnitLayout& unit = units[members.unit];
    if (const absl::Status run = CheckIsRun(members, unit); !run.ok()) return run;
    // A rank may hold nothing of a unit: its shard is padding, and an empty dataset would need a place.
    if (members.held.empty()) continue;
    for (auto& [tensor, offset] : members.tensors) {
      if (tensor->interval.empty()) continue;
      tensor->place = TreeFile::InFlat{.flat = static_cast<int>(tree.flats.size()),
                                       .begin = offset + tensor->interval.begin - members.held.begin};
    }
    tree.flats.push_back({path, unit.name, members.dtype, members.held.size()});
  }
  return absl::OkStatus();
}

void CutFlat(const std::vector<FlatUnitLayout>& units, int shards, int shard,
             std::vector<TreeFile::TensorPart>& tensors) {
  const FlatPlaces places(units);
  for (TreeFile::TensorPart& tensor : tensors) {
    const auto place = places.Find(tensor.key, tensor.shape);
    if (!place) {
      tensor.interval = Dim0Chunk(tensor.shape, shards, shard);
      continue;
    }
    const Interval held = ChunkOf(units[place->unit].unsharded_numel, shards, shard);
    tensor.interval = Intersect(Moved(held, -place->offset), {0, tensor.shape.numel()});
  }
}

}  // namespace fsdp
