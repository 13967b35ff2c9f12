// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save/payload_writer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/storage/write_queue.h"
#include "checkpoint/storage/write_queues.h"

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

absl::StatusOr<std::vector<StoredExtent>> WriteExtents(File& file, std::vector<PayloadExtent> extents, ThreadPool& pool,
                                                       const PayloadWriteOptions& options) {
  std::sort(extents.begin(), extents.end(),
            [](const PayloadExtent& a, const PayloadExtent& b) { return a.range.offset < b.range.offset; });
  std::vector<StoredExtent> stored;
  std::vector<BlockOfExtent> blocks;
  for (const PayloadExtent& extent : extents) {
    const int64_t count = BlockCount(extent.range.nbytes);
    for (int64_t block = 0; block < count; ++block) blocks.push_back({static_cast<int>(stored.size()), block});
    stored.push_back({extent.range, std::vector<Digest>(count)});
  }
  WriteQueues queues(file, options.queue_depth);
  RETURN_IF_ERROR(pool.ParallelFor(static_cast<int64_t>(blocks.size()), [&](int64_t i) -> absl::Status {
    const PayloadExtent& extent = extents[blocks[i].extent];
    const int64_t begin = blocks[i].block * kBlockBytes;
    const int64_t size = std::min(kBlockBytes, extent.range.nbytes - begin);
    std::unique_ptr<WriteQueue> queue = queues.Take();
    ASSIGN_OR_RETURN(std::byte* const scratch, queue->Buffer());
    ASSIGN_OR_RETURN(const std::byte* bytes, extent.read(begin, size, scratch));
    DigestBuilder digest;
    if (queue->NeedsCopy(bytes)) {
      CopyAndDigest(scratch, bytes, size, digest);
      bytes = scratch;
    } else {
      digest.Update(absl::MakeConstSpan(bytes, size));
    }
    stored[blocks[i].extent].digests[blocks[i].block] = digest.Finish();
    RETURN_IF_ERROR(queue->Write(extent.range.offset + begin, absl::MakeConstSpan(bytes, size)));
    queues.Give(std::move(queue));
    if (options.count) options.count(size);
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(queues.Finish());
  return stored;
}

absl::StatusOr<StoredFile> WritePayload(File& file, const MemoryFile& image, int64_t nbytes,
                                        std::vector<PayloadExtent> extents, ThreadPool& pool,
                                        const PayloadWriteOptions& options) {
  StoredFile stored;
  stored.nbytes = nbytes;
  std::vector<ByteRange> taken = options.later;
  for (const PayloadExtent& extent : extents) taken.push_back(extent.range);
  std::sort(taken.begin(), taken.end(), [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  RETURN_IF_ERROR(file.Reserve(nbytes));
  ASSIGN_OR_RETURN(stored.extents, WriteExtents(file, std::move(extents), pool, options));
  ASSIGN_OR_RETURN(stored.rest_digest, WriteRest(file, image, RangesBetween(taken, nbytes)));
  return stored;
}

}  // namespace fsdp
