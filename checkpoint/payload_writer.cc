// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/payload_writer.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/block_buffers.h"

namespace fsdp {
namespace {

constexpr int64_t kImagePieceBytes = int64_t{1} << 20;

bool IsZero(absl::Span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Copies what lies between payload and digests it. Reserved space is zero already, so zeros are not written.
absl::StatusOr<Digest> WriteRest(File& file, const MemoryFile& image, const std::vector<ByteRange>& ranges) {
  DigestBuilder digest;
  std::vector<std::byte> piece(kImagePieceBytes);
  for (const ByteRange& range : ranges) {
    for (int64_t at = range.offset; at < range.end(); at += kImagePieceBytes) {
      const auto bytes = absl::MakeSpan(piece).first(std::min(kImagePieceBytes, range.end() - at));
      RETURN_IF_ERROR(image.Read(at, bytes));
      digest.Update(bytes);
      if (!IsZero(bytes)) RETURN_IF_ERROR(file.Write(at, bytes));
    }
  }
  return digest.Finish();
}

struct BlockOfExtent {
  int extent = 0;
  int64_t block = 0;
};

}  // namespace

std::vector<ByteRange> RangesBetween(const std::vector<ByteRange>& taken, int64_t nbytes) {
  std::vector<ByteRange> between;
  int64_t end = 0;
  for (const ByteRange& range : taken) {
    if (range.offset > end) between.push_back({end, range.offset - end});
    end = range.end();
  }
  if (nbytes > end) between.push_back({end, nbytes - end});
  return between;
}

absl::StatusOr<StoredFile> WritePayload(File& file, const MemoryFile& image, int64_t nbytes,
                                        std::vector<PayloadExtent> extents, ThreadPool& pool,
                                        const PayloadWriteOptions& options) {
  std::sort(extents.begin(), extents.end(),
            [](const PayloadExtent& a, const PayloadExtent& b) { return a.range.offset < b.range.offset; });
  StoredFile stored;
  stored.nbytes = nbytes;
  stored.record = options.record;
  std::vector<ByteRange> taken;
  std::vector<BlockOfExtent> blocks;
  for (const PayloadExtent& extent : extents) {
    const int64_t count = BlockCount(extent.range.nbytes);
    for (int64_t block = 0; block < count; ++block) blocks.push_back({static_cast<int>(stored.extents.size()), block});
    stored.extents.push_back({extent.range, std::vector<Digest>(count)});
    taken.push_back(extent.range);
  }
  if (options.record) {
    taken.insert(std::upper_bound(taken.begin(), taken.end(), options.record->offset,
                                  [](int64_t offset, const ByteRange& range) { return offset < range.offset; }),
                 *options.record);
  }
  RETURN_IF_ERROR(file.Reserve(nbytes));
  ASSIGN_OR_RETURN(stored.rest_digest, WriteRest(file, image, RangesBetween(taken, nbytes)));
  BlockBuffers buffers;
  RETURN_IF_ERROR(pool.ParallelFor(static_cast<int64_t>(blocks.size()), [&](int64_t i) -> absl::Status {
    const PayloadExtent& extent = extents[blocks[i].extent];
    const int64_t begin = blocks[i].block * kBlockBytes;
    const int64_t size = std::min(kBlockBytes, extent.range.nbytes - begin);
    const BlockBuffers::Lease scratch = buffers.Take();
    ASSIGN_OR_RETURN(const std::byte* bytes, extent.read(begin, size, scratch.data()));
    const auto block = absl::MakeConstSpan(bytes, size);
    stored.extents[blocks[i].extent].digests[blocks[i].block] = DigestOf(block);
    RETURN_IF_ERROR(file.Write(extent.range.offset + begin, block));
    if (options.count) options.count(size);
    return absl::OkStatus();
  }));
  return stored;
}

}  // namespace fsdp
