// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/tree/tree_parts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr int64_t kPageBytes = 4096;

// Shorter than this, a part is not worth a cut.
constexpr int64_t kLongBytes = int64_t{1} << 20;

// The elements of `part`, of `size` bytes each, whose first lies at `offset`: cut where the first page begins.
std::vector<Interval> CutAtPage(const Interval& part, int64_t offset, int64_t size) {
  const int64_t head = (kPageBytes - offset % kPageBytes) % kPageBytes;
  if (head == 0 || head % size != 0 || part.size() * size < kLongBytes) return {part};
  const int64_t cut = part.begin + head / size;
  return {{part.begin, cut}, {cut, part.end}};
}

}  // namespace

std::vector<int64_t> TensorOffsets(const Manifest& made) {
  std::vector<int64_t> offsets;
  for (const StoredTensor& tensor : made.tensors) offsets.push_back(tensor.intervals[0].offset);
  return offsets;
}

absl::StatusOr<Manifest> WriteTreeParts(FileSystem& files, const std::string& directory, const std::string& name,
                                        const std::vector<TreeFile::TensorPart>& tensors,
                                        const std::vector<int64_t>& offsets, const WriteBarrier& barrier,
                                        ThreadPool& pool) {
  Check(tensors.size() == offsets.size(), "an offset for each tensor");
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.OpenToWrite(JoinPath(directory, name)));
  Manifest part;
  std::vector<PayloadExtent> extents;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TreeFile::TensorPart& tensor = tensors[i];
    part.tensors.push_back({tensor.key, tensor.aliases, tensor.dtype, tensor.shape, {}, ""});
    if (tensor.interval.empty()) continue;
    const int64_t size = SizeOf(tensor.dtype);
    for (const Interval& cut : CutAtPage(tensor.interval, offsets[i] + tensor.interval.begin * size, size)) {
      const ByteRange range = {offsets[i] + cut.begin * size, cut.size() * size};
      part.tensors.back().intervals.push_back({cut, 0, range.offset});
      extents.push_back({range, [&tensor, cut, size](int64_t begin, int64_t nbytes, std::byte* scratch) {
                           const int64_t first = cut.begin + begin / size;
                           return tensor.read({first, first + nbytes / size}, scratch);
                         }});
    }
  }
  StoredFile stored;
  stored.name = name;
  FSDP_ASSIGN_OR_RETURN(stored.nbytes, file->Size());
  FSDP_ASSIGN_OR_RETURN(stored.extents, WriteExtents(*file, std::move(extents), pool, {.barrier = barrier}));
  FSDP_RETURN_IF_ERROR(file->Sync());
  part.files.push_back(std::move(stored));
  return part;
}

absl::Status MergeTreeParts(const std::vector<Manifest>& parts, Manifest& made) {
  std::vector<StoredExtent>& extents = made.files[0].extents;
  for (StoredTensor& tensor : made.tensors) tensor.intervals.clear();
  for (const Manifest& part : parts) {
    extents.insert(extents.end(), part.files[0].extents.begin(), part.files[0].extents.end());
    for (size_t i = 0; i < made.tensors.size(); ++i) {
      const auto& intervals = part.tensors[i].intervals;
      made.tensors[i].intervals.insert(made.tensors[i].intervals.end(), intervals.begin(), intervals.end());
    }
  }
  std::sort(extents.begin(), extents.end(),
            [](const StoredExtent& a, const StoredExtent& b) { return a.range.offset < b.range.offset; });
  for (StoredTensor& tensor : made.tensors) {
    std::sort(tensor.intervals.begin(), tensor.intervals.end(),
              [](const StoredInterval& a, const StoredInterval& b) { return a.interval.begin < b.interval.begin; });
    FSDP_RETURN_IF_ERROR(CheckCovered(tensor));
    if (tensor.intervals.empty()) tensor.intervals.push_back({{0, 0}, 0, 0});
  }
  return absl::OkStatus();
}

}  // namespace fsdp
