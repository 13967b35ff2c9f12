// SPDX-License-Identifier: Apache-2.0
//
// WriteBlocks: a file whose bytes are made as they are written, for formats that place their payload at any byte:
// safetensors, zip. Direct I/O wants whole sectors, so it is the file that is cut into blocks and not its tensors: a
// block has the end of one tensor, whatever lies between, and the beginning of the next, and goes to the disk as one
// write, several of them in flight.
#ifndef FSDP_CHECKPOINT_STORAGE_WRITE_BLOCKS_H_
#define FSDP_CHECKPOINT_STORAGE_WRITE_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Puts the bytes of the file from `begin` on, a multiple of kBlockBytes, into `out`, all of it. Called once for each
// block, from several threads, in about the order of the file.
using BlockFiller = std::function<absl::Status(int64_t begin, absl::Span<std::byte> out)>;

// How many threads make blocks, and how many blocks of memory each has (File::NewWriteQueue).
struct BlockWriteShape {
  int threads = 1;
  int queue_depth = 1;
};

// The widest shape whose blocks fit in `buffer_bytes`, with at most `io_threads` threads; never less than one block.
BlockWriteShape ShapeOfBlockWrites(int64_t buffer_bytes, int io_threads);

// Makes the empty `file` the `nbytes` bytes that `fill` gives, and waits until no write is in flight; from then on
// other writes may go to the file. Space is reserved first, so that a full disk is noticed before anything else. Takes
// up to `queue_depth` blocks of memory for each thread of `pool`. Not synced.
absl::Status WriteBlocks(File& file, int64_t nbytes, const BlockFiller& fill, ThreadPool& pool, int queue_depth);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_WRITE_BLOCKS_H_
