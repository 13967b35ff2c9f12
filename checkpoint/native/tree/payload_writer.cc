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
#include <iterator>
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

// One task: up to kBlockBytes of an extent, or several short extents, each of which begins where the one before and its
// padding end. HDF5 puts small datasets next to each other, so thousands of small tensors are a few large writes.
struct WriteTask {
  size_t first = 0;  // the extents are [first, first + count)
  size_t count = 1;
  int64_t begin = 0;   // of the bytes in the first extent
  int64_t nbytes = 0;  // without padding
  int64_t end = 0;     // in the file, with padding
};

std::vector<WriteTask> TasksOf(const std::vector<PayloadExtent>& extents) {
  constexpr int64_t kShortBytes = 64 * 1024;  // copying longer ones costs more than a write
  constexpr int64_t kRunBytes = int64_t{1} << 20;
  std::vector<WriteTask> tasks;
  bool is_run = false;  // the last task may be continued
  for (size_t i = 0; i < extents.size(); ++i) {
    const auto& [range, read, padding] = extents[i];
    const bool is_short = range.nbytes > 0 && range.nbytes <= kShortBytes;
    if (is_run && is_short && tasks.back().end == range.offset &&
        range.end() - extents[tasks.back().first].range.offset <= kRunBytes) {
      ++tasks.back().count;
      tasks.back().nbytes += range.nbytes;
      tasks.back().end = range.end() + padding;
      continue;
    }
    for (int64_t begin = 0; begin < range.nbytes; begin += kBlockBytes) {
      const int64_t nbytes = std::min(kBlockBytes, range.nbytes - begin);
      const bool is_last = begin + nbytes == range.nbytes;
      tasks.push_back({i, 1, begin, nbytes, range.offset + begin + nbytes + (is_last ? padding : 0)});
    }
    is_run = is_short;
  }
  return tasks;
}

// Digests `size` bytes of an extent, from `begin` on, which are at `bytes`, into `stored` block by block. Copies them
// to `to` in the same pass, unless it is null.
void DigestBlocks(int64_t begin, int64_t size, const std::byte* bytes, std::byte* to, StoredExtent& stored) {
  DigestBuilder builder;
  for (int64_t done = 0; done < size; done += stored.block_bytes) {
    const int64_t nbytes = std::min(stored.block_bytes, size - done);
    builder.Reset();
    if (to != nullptr) {
      CopyAndDigest(to + done, bytes + done, nbytes, builder);
    } else {
      builder.Update(absl::MakeConstSpan(bytes + done, nbytes));
    }
    stored.digests[(begin + done) / stored.block_bytes] = builder.Finish();
  }
}

// Reads, digests and writes bytes of one extent, pads them at its end, and copies them only if `queue` cannot write
// from their memory.
absl::Status WritePart(const PayloadExtent& extent, const WriteTask& task, WriteQueue& queue, StoredExtent& stored) {
  const int64_t offset = extent.range.offset + task.begin;
  const int64_t padding = task.end - offset - task.nbytes;
  FSDP_ASSIGN_OR_RETURN(std::byte* const scratch, queue.Buffer());
  FSDP_ASSIGN_OR_RETURN(const std::byte* bytes, extent.read(task.begin, task.nbytes, scratch));
  const bool copies = bytes != scratch && (padding > 0 || queue.NeedsCopy(bytes));
  DigestBlocks(task.begin, task.nbytes, bytes, copies ? scratch : nullptr, stored);
  if (padding > 0) std::memset(scratch + task.nbytes, 0, padding);
  return queue.Write(offset, absl::MakeConstSpan(copies ? scratch : bytes, task.nbytes + padding));
}

// The same for several extents. They are put as far from the beginning of a page in memory as in the file, so that all
// but the first and the last page can be written directly.
absl::Status WriteRun(const std::vector<PayloadExtent>& extents, const WriteTask& task, WriteQueue& queue,
                      std::vector<StoredExtent>& stored) {
  const int64_t offset = extents[task.first].range.offset;
  FSDP_ASSIGN_OR_RETURN(std::byte* const buffer, queue.Buffer());
  std::byte* const begin = buffer + offset % kPageBytes;
  std::byte* to = begin;
  for (size_t i = task.first; i < task.first + task.count; ++i) {
    const int64_t nbytes = extents[i].range.nbytes;
    FSDP_ASSIGN_OR_RETURN(const std::byte* bytes, extents[i].read(0, nbytes, to));
    DigestBlocks(0, nbytes, bytes, bytes == to ? nullptr : to, stored[i]);
    std::memset(to + nbytes, 0, extents[i].padding);
    to += nbytes + extents[i].padding;
  }
  const auto run = absl::MakeConstSpan(begin, to - begin);
  const int64_t head = std::min<int64_t>((kPageBytes - offset % kPageBytes) % kPageBytes, to - begin);
  if (head > 0) FSDP_RETURN_IF_ERROR(queue.Write(offset, run.first(head)));
  return head < to - begin ? queue.Write(offset + head, run.subspan(head)) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<StoredExtent>> WriteExtents(File& file, std::vector<PayloadExtent> extents, ThreadPool& pool,
                                                       const PayloadWriteOptions& options) {
  std::sort(extents.begin(), extents.end(),
            [](const PayloadExtent& a, const PayloadExtent& b) { return a.range.offset < b.range.offset; });
  std::vector<StoredExtent> stored;
  stored.reserve(extents.size());
  for (const PayloadExtent& extent : extents) stored.push_back(NewPayloadExtent(extent.range));
  const std::vector<WriteTask> tasks = TasksOf(extents);
  WriteQueues queues(file, options.queue_depth);
  absl::Status written = pool.ParallelFor(std::ssize(tasks), [&](int64_t i) -> absl::Status {
    const WriteTask& task = tasks[i];
    std::unique_ptr<WriteQueue> queue = queues.Take();
    FSDP_RETURN_IF_ERROR(task.count == 1 ? WritePart(extents[task.first], task, *queue, stored[task.first])
                                         : WriteRun(extents, task, *queue, stored));
    queues.Give(std::move(queue));
    if (options.count) options.count(task.nbytes);
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
