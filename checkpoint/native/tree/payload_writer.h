// SPDX-License-Identifier: Apache-2.0
//
// WritePayload: fills a file that was laid out in memory, in three steps: reserve its space, so that a full disk is
// noticed first; write the payload block by block on several threads with several blocks in flight each, and digest
// each block while it is in the cache; copy the bytes between the payload from the layout.
#ifndef FSDP_CHECKPOINT_NATIVE_TREE_PAYLOAD_WRITER_H_
#define FSDP_CHECKPOINT_NATIVE_TREE_PAYLOAD_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/memory_file.h"

namespace fsdp {

// Returns the address of bytes [begin, begin + nbytes) of an extent: their own memory, or `scratch`, which has room for
// nbytes bytes, after copying them there. Called from several threads.
using BlockReader = std::function<absl::StatusOr<const std::byte*>(int64_t begin, int64_t nbytes, std::byte* scratch)>;

struct PayloadExtent {
  ByteRange range;
  BlockReader read;
  int64_t padding = 0;  // bytes after the extent that are zero and unused, and may be written together with it
};

// Counts bytes that have been written. Called from several threads.
using ByteCounter = std::function<void(int64_t nbytes)>;

// Called once, with the status of all writes so far, when no direct write is in flight and no write through the page
// cache has begun. If several processes write one file, it blocks until all of them have arrived here (write_queue.h).
// If it returns an error, writing ends.
using WriteBarrier = std::function<absl::Status(const absl::Status& written)>;

struct PayloadWriteOptions {
  std::vector<ByteRange> later = {};  // neither written nor digested by this call; sorted and disjoint
  ByteCounter count = {};             // may be empty
  WriteBarrier barrier = {};          // may be empty
  int queue_depth = 5;                // blocks per thread: one is filled while the others are in flight
};

// Fills the empty `file` with `extents` and, outside of them, the bytes of `image`, `nbytes` in total. Extents are
// disjoint and in any order. Takes up to queue_depth blocks of memory per thread of `pool`; payload that can be written
// from its own memory takes no block. The result has no name and does not describe options.later. Does not fsync.
absl::StatusOr<StoredFile> WritePayload(File& file, const MemoryFile& image, int64_t nbytes,
                                        std::vector<PayloadExtent> extents, ThreadPool& pool,
                                        const PayloadWriteOptions& options);

// The last part of WritePayload: writes `extents`, in any order, into a file that already has their space. The result
// is sorted by offset.
absl::StatusOr<std::vector<StoredExtent>> WriteExtents(File& file, std::vector<PayloadExtent> extents, ThreadPool& pool,
                                                       const PayloadWriteOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_TREE_PAYLOAD_WRITER_H_
