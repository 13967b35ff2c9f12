// SPDX-License-Identifier: Apache-2.0
//
// A digest covers a whole block, so the block is the unit of reading. Reading tensor by tensor would read a block once
// for each small tensor in it, and for a resharded load in an order that jumps between files. So the wanted elements
// are first cut at blocks, then sorted by place: this puts the pieces of a block next to each other, and blocks in the
// order of files and offsets. Time is O(p log p) for p pieces.
#include "fsdp/checkpoint/native/read/read_plan.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

// A piece with its block.
struct Placed {
  int file = 0;
  int extent = 0;
  int64_t block = 0;
  BlockPiece piece;

  auto place() const { return std::make_tuple(file, extent, block, piece.range.offset); }
};

// Cuts elements `part` of a stored interval at the blocks of its extent. Blocks are cut between elements, so every
// piece has whole elements.
void Cut(const StoredTensor& tensor, const StoredInterval& stored, const Interval& part, const TensorRead& read,
         const Manifest& manifest, int index, std::vector<Placed>& pieces) {
  const int64_t size = SizeOf(tensor.dtype);
  const StoredFile& file = manifest.files[stored.file];
  const StoredExtent* const extent = ExtentAt(file, stored.offset);
  const ByteRange bytes = {stored.offset + (part.begin - stored.interval.begin) * size, part.size() * size};
  for (int64_t at = bytes.offset; at < bytes.end();) {
    const int64_t block = (at - extent->range.offset) / extent->block_bytes;
    const int64_t end = std::min(bytes.end(), extent->block(block).end());
    Placed placed;
    placed.file = stored.file;
    placed.extent = static_cast<int>(extent - file.extents.data());
    placed.block = block;
    // `out` holds the elements of the whole read, so the position counts from the read's first element, in the wanted
    // dtype.
    const int64_t element = part.begin + (at - bytes.offset) / size - read.interval.begin;
    placed.piece = {{at, end - at}, tensor.dtype, read.dtype, read.out + element * SizeOf(read.dtype), index};
    pieces.push_back(placed);
    at = end;
  }
}

// A gap up to this size costs less to read than another transfer would.
constexpr int64_t kMaxGapBytes = int64_t{64} << 10;

ByteRange RangeOfPieces(const BlockRead& block) {
  const int64_t begin = block.pieces.front().range.offset;
  int64_t end = begin;
  for (const BlockPiece& piece : block.pieces) end = std::max(end, piece.range.end());
  return {begin, end - begin};
}

}  // namespace

absl::StatusOr<std::vector<BlockRead>> PlanReads(const Manifest& manifest, const TensorIndex& index,
                                                 const std::vector<TensorRead>& reads) {
  std::vector<Placed> pieces;
  for (size_t i = 0; i < reads.size(); ++i) {
    const TensorRead& read = reads[i];
    const auto found = index.find(read.key);
    if (found == index.end()) return absl::NotFoundError(absl::StrCat("no ", Describe(read.key), " is stored"));
    const StoredTensor& tensor = manifest.tensors[found->second];
    if (!Interval{0, tensor.shape.numel()}.Contains(read.interval) || read.interval.begin > read.interval.end) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(read.key), ": elements ", read.interval.ToString(), " of ", tensor.shape.numel()));
    }
    // Intervals are sorted and disjoint: the first that ends after the wanted elements begin, then its successors.
    auto stored = std::partition_point(tensor.intervals.begin(), tensor.intervals.end(), [&](const auto& interval) {
      return interval.interval.end <= read.interval.begin;
    });
    for (; stored != tensor.intervals.end() && stored->interval.begin < read.interval.end; ++stored) {
      const Interval part = Intersect(stored->interval, read.interval);
      if (!part.empty()) Cut(tensor, *stored, part, read, manifest, static_cast<int>(i), pieces);
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Placed& a, const Placed& b) { return a.place() < b.place(); });
  std::vector<BlockRead> blocks;
  for (const Placed& placed : pieces) {
    const bool is_same = !blocks.empty() && blocks.back().file == placed.file &&
                         blocks.back().extent == placed.extent && blocks.back().block == placed.block;
    if (!is_same) {
      const StoredExtent& extent = manifest.files[placed.file].extents[placed.extent];
      blocks.push_back({placed.file, placed.extent, placed.block, extent.block(placed.block), {}});
    }
    blocks.back().pieces.push_back(placed.piece);
  }
  return blocks;
}

std::vector<BlockRun> JoinBlocks(const std::vector<BlockRead>& blocks, BlockParts parts) {
  std::vector<BlockRun> runs;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const ByteRange range = parts == BlockParts::kWhole ? blocks[i].range : RangeOfPieces(blocks[i]);
    if (!runs.empty() && blocks[runs.back().first].file == blocks[i].file) {
      BlockRun& last = runs.back();
      const int64_t gap = range.offset - last.range.end();
      if (gap >= 0 && gap <= kMaxGapBytes && range.end() - last.range.offset <= kBlockBytes) {
        last.range.nbytes = range.end() - last.range.offset;
        ++last.count;
        continue;
      }
    }
    runs.push_back({i, 1, range});
  }
  return runs;
}

}  // namespace fsdp
