// SPDX-License-Identifier: Apache-2.0
//
// The block belongs to the thread and not to the file: no lock, and the same memory for a directory of a thousand
// files. A thread that reads from several files in turn finds no read near the one before, so it never fills the block
// in vain.
#include "fsdp/checkpoint/storage/nearby_reads.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "fsdp/checkpoint/storage/byte_range.h"

namespace fsdp {
namespace {

// Copying a longer read costs as much as its system call.
constexpr int64_t kSmallBytes = 4096;

// How far from the end of the one before a read is near: a filled block then has several of them.
constexpr int64_t kNearBytes = NearbyReads::kMemoryBytes / 8;

// The number of near reads in a row that fill the block: a header and the name after it are two.
constexpr int kEnoughReads = 2;

// Beyond it a sum of offset and size may overflow: such an offset comes from a damaged file.
constexpr int64_t kLastOffset = std::numeric_limits<int64_t>::max() - 2 * NearbyReads::kMemoryBytes;

// The last reads of a thread.
struct LastReads {
  uint64_t file = 0;   // NearbyReads::id_
  ByteRange block;     // the bytes of `file` in `bytes`
  int64_t end = 0;     // of the last small read
  int near_reads = 0;  // in a row, up to the last one
  std::unique_ptr<std::byte[]> bytes;
};

LastReads& LastReadsOfThread() {
  thread_local LastReads last;
  return last;
}

// Fills the block from the page of `offset` on; false if it then lacks a part of the read, whose error the file has.
bool Fill(const File& file, int64_t offset, int64_t nbytes, LastReads& last) {
  last.block = {};
  const absl::StatusOr<int64_t> size = file.Size();
  const int64_t begin = offset / kPageBytes * kPageBytes;
  if (!size.ok() || nbytes > *size - offset) return false;
  if (last.bytes == nullptr) last.bytes.reset(new std::byte[NearbyReads::kMemoryBytes]);
  const ByteRange block = {begin, std::min(NearbyReads::kMemoryBytes, *size - begin)};
  if (!file.Read(begin, {last.bytes.get(), static_cast<size_t>(block.nbytes)}).ok()) return false;
  last.block = block;
  return true;
}

uint64_t NewId() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

NearbyReads::NearbyReads(std::unique_ptr<File> file) : file_(std::move(file)), id_(NewId()) {}

absl::Status NearbyReads::Read(int64_t offset, absl::Span<std::byte> out) const {
  const auto nbytes = static_cast<int64_t>(out.size());
  const bool is_small = nbytes > 0 && nbytes <= kSmallBytes;
  if (!is_small || offset < 0 || offset > kLastOffset) return file_->Read(offset, out);
  LastReads& last = LastReadsOfThread();
  const bool is_same_file = last.file == id_;
  const bool is_near = is_same_file && std::abs(offset - last.end) <= kNearBytes;
  if (!is_same_file) last.block = {};
  last.file = id_;
  last.end = offset + nbytes;
  last.near_reads = is_near ? std::min(last.near_reads + 1, kEnoughReads) : 0;
  const bool has_all = offset >= last.block.offset && offset + nbytes <= last.block.end();
  if (!has_all) {
    const bool fills = last.near_reads == kEnoughReads && Fill(*file_, offset, nbytes, last);
    if (!fills) return file_->Read(offset, out);
  }
  std::memcpy(out.data(), last.bytes.get() + (offset - last.block.offset), nbytes);
  return absl::OkStatus();
}

}  // namespace fsdp
