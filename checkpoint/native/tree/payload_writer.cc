// SPDX-License-Identifier: Apache-2.0
//
// Most bytes of a file are written with O_DIRECT, which needs whole pages: offset, length and memory. Three measures
// make nearly all payload fit:
//
//   - HDF5 aligns datasets of 2 KiB and more to pages (hdf5_file.cc), so their blocks begin at a page;
//   - the last block of an extent is padded with zeros to the end of its page, if the page has nothing else
//     (AddPadding);
//   - elements that are not aligned in memory are copied to an aligned buffer, which is digested in the same pass.
//
// The remaining bytes (ends of extents that share a page, the layout's own bytes) go through the page cache once no
// direct write is in flight; write_queue.h explains why the two must not overlap.
#include "fsdp/checkpoint/native/tree/payload_writer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

constexpr int64_t kImagePieceBytes = int64_t{1} << 20;

bool IsZero(absl::Span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Copies the bytes in `ranges`, which are outside of payload, from the image to the file. Returns the digest of all of
// them. Reserved space is zero already, so pieces of zeros are not written.
absl::StatusOr<Digest> WriteRest(File& file, const MemoryFile& image, const std::vector<ByteRange>& ranges) {
  DigestBuilder digest;
  std::vector<std::byte> piece(kImagePieceBytes);
  for (const ByteRange& range : ranges) {
    for (int64_t at = range.offset; at < range.end(); at += kImagePieceBytes) {
      const auto bytes = absl::MakeSpan(piece).first(std::min(kImagePieceBytes, range.end() - at));
      FSDP_RETURN_IF_ERROR(image.Read(at, bytes));
      digest.Update(bytes);
      if (!IsZero(bytes)) FSDP_RETURN_IF_ERROR(file.Write(at, bytes));
    }
  }
  return digest.Finish();
}

// Sets the padding of an extent that ends within a page, if the rest of the page is zeros in the image and no other
// range begins in it. `taken`: the extents and options.later, sorted.
absl::Status AddPadding(const MemoryFile& image, int64_t nbytes, const std::vector<ByteRange>& taken,
                        PayloadExtent& extent) {
  const int64_t end = extent.range.end();
  const int64_t page_end = (end + kPageBytes - 1) / kPageBytes * kPageBytes;
  const auto next = std::upper_bound(taken.begin(), taken.end(), extent.range.offset,
                                     [](int64_t offset, const ByteRange& range) { return offset < range.offset; });
  const bool is_alone = next == taken.end() || next->offset >= page_end;
  if (extent.range.offset % kPageBytes != 0 || page_end > nbytes || !is_alone) return absl::OkStatus();
  std::vector<std::byte> rest(page_end - end);
  FSDP_RETURN_IF_ERROR(image.Read(end, absl::MakeSpan(rest)));
  if (IsZero(rest)) extent.padding = page_end - end;
  return absl::OkStatus();
}

// One write: up to kBlockBytes of an extent.
struct WriteOfExtent {
  int extent = 0;
  int64_t begin = 0;
};

// Reads the bytes of the write at `begin` of `extent`, digests them into `stored` block by block, and pads them at the
// end of the extent. The result is in memory from which `queue` can write.
absl::StatusOr<absl::Span<const std::byte>> Prepare(const PayloadExtent& extent, int64_t begin, WriteQueue& queue,
                                                    StoredExtent& stored) {
  const int64_t size = std::min(kBlockBytes, extent.range.nbytes - begin);
  const int64_t padding = begin + size == extent.range.nbytes ? extent.padding : 0;
  FSDP_ASSIGN_OR_RETURN(std::byte* const scratch, queue.Buffer());
  FSDP_ASSIGN_OR_RETURN(const std::byte* bytes, extent.read(begin, size, scratch));
  const bool copies = bytes != scratch && (padding > 0 || queue.NeedsCopy(bytes));
  DigestBuilder builder;
  for (int64_t done = 0; done < size; done += stored.block_bytes) {
    const int64_t nbytes = std::min(stored.block_bytes, size - done);
    builder.Reset();
    if (copies) {
      CopyAndDigest(scratch + done, bytes + done, nbytes, builder);
    } else {
      builder.Update(absl::MakeConstSpan(bytes + done, nbytes));
    }
    stored.digests[(begin + done) / stored.block_bytes] = builder.Finish();
  }
  if (padding > 0) std::memset(scratch + size, 0, padding);
  return absl::MakeConstSpan(copies ? scratch : bytes, size + padding);
}

}  // namespace

absl::StatusOr<std::vector<StoredExtent>> WriteExtents(File& file, std::vector<PayloadExtent> extents, ThreadPool& pool,
                                                       const PayloadWriteOptions& options) {
  std::sort(extents.begin(), extents.end(),
            [](const PayloadExtent& a, const PayloadExtent& b) { return a.range.offset < b.range.offset; });
  std::vector<StoredExtent> stored;
  std::vector<WriteOfExtent> writes;
  for (const PayloadExtent& extent : extents) {
    for (int64_t begin = 0; begin < extent.range.nbytes; begin += kBlockBytes) {
      writes.push_back({static_cast<int>(stored.size()), begin});
    }
    stored.push_back(NewPayloadExtent(extent.range));
  }
  WriteQueues queues(file, options.queue_depth);
  absl::Status written = pool.ParallelFor(static_cast<int64_t>(writes.size()), [&](int64_t i) -> absl::Status {
    const PayloadExtent& extent = extents[writes[i].extent];
    const int64_t begin = writes[i].begin;
    std::unique_ptr<WriteQueue> queue = queues.Take();
    FSDP_ASSIGN_OR_RETURN(const auto bytes, Prepare(extent, begin, *queue, stored[writes[i].extent]));
    FSDP_RETURN_IF_ERROR(queue->Write(extent.range.offset + begin, bytes));
    queues.Give(std::move(queue));
    if (options.count) options.count(std::min(kBlockBytes, extent.range.nbytes - begin));
    return absl::OkStatus();
  });
  written.Update(queues.Drain());
  FSDP_RETURN_IF_ERROR(options.barrier ? options.barrier(written) : written);
  FSDP_RETURN_IF_ERROR(queues.Finish());
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
  for (PayloadExtent& extent : extents) FSDP_RETURN_IF_ERROR(AddPadding(image, nbytes, taken, extent));
  FSDP_RETURN_IF_ERROR(file.Reserve(nbytes));
  FSDP_ASSIGN_OR_RETURN(stored.extents, WriteExtents(file, std::move(extents), pool, options));
  FSDP_ASSIGN_OR_RETURN(stored.rest_digest, WriteRest(file, image, RangesBetween(taken, nbytes)));
  return stored;
}

}  // namespace fsdp
