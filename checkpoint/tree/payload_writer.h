// SPDX-License-Identifier: Apache-2.0
//
// WritePayload: fills a file that was laid out in memory: first its space is reserved, so that a full disk is noticed
// before anything else; then the payload is written block by block, by several threads with several blocks in flight
// each, and each block is digested while it is hot; then the layout's own bytes are copied.
#ifndef FSDP_CHECKPOINT_TREE_PAYLOAD_WRITER_H_
#define FSDP_CHECKPOINT_TREE_PAYLOAD_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/memory_file.h"

namespace fsdp {

// Gives bytes [begin, begin + nbytes) of an extent: their address, wherever they are, or `scratch`, of nbytes bytes,
// after putting them there. Called from several threads.
using BlockReader = std::function<absl::StatusOr<const std::byte*>(int64_t begin, int64_t nbytes, std::byte* scratch)>;

struct PayloadExtent {
  ByteRange range;
  BlockReader read;
  int64_t padding = 0;  // so many bytes behind the extent are zero and nobody else's, and may be written with it
};

// Counts bytes that have been written. Called from several threads.
using ByteCounter = std::function<void(int64_t nbytes)>;

// Called when nothing is in flight, with what came of it, before anything goes through the page cache: where several
// processes write to one file, it returns when all have come so far (write_queue.h), and whether to go on.
using WriteBarrier = std::function<absl::Status(const absl::Status& written)>;

struct PayloadWriteOptions {
  std::vector<ByteRange> later = {};  // left for later: neither written nor digested here; sorted and disjoint
  ByteCounter count = {};             // may be empty
  WriteBarrier barrier = {};          // may be empty
  int queue_depth = 5;                // blocks per thread: one is made while the others are in flight
};

// Fills the empty `file` with the first `nbytes` bytes of `image`, `extents` in place of theirs, which are disjoint and
// come in any order. Takes up to queue_depth blocks of memory per thread of `pool`, none for payload that lies where it
// can be written from. The result lacks the name and what is left for later. Not synced.
absl::StatusOr<StoredFile> WritePayload(File& file, const MemoryFile& image, int64_t nbytes,
                                        std::vector<PayloadExtent> extents, ThreadPool& pool,
                                        const PayloadWriteOptions& options);

// The last part of WritePayload: writes `extents`, in any order, into a file that has room for them. The result is
// sorted by offset.
absl::StatusOr<std::vector<StoredExtent>> WriteExtents(File& file, std::vector<PayloadExtent> extents, ThreadPool& pool,
                                                       const PayloadWriteOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TREE_PAYLOAD_WRITER_H_
