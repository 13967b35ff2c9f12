// SPDX-License-Identifier: Apache-2.0
//
// WriteBlocks: writes a file whose bytes are generated block by block, for formats that place tensors at any byte:
// safetensors, zip. Direct I/O writes only whole sectors, so the file is cut into blocks instead of its tensors: one
// block may hold the end of a tensor, the bytes between, and the beginning of the next tensor. Each block is one write,
// and several writes are in flight.
//
//   tensors   |--- a ---|.|------ b ------|--- c ---|
//   writes    |    block 0    |    block 1    | ... |
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
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

// Fills all of `out` with the bytes of the file from `begin`, a multiple of kBlockBytes. Called once for each block,
// from several threads, in about the order of the file.
using BlockFiller = std::function<absl::Status(int64_t begin, absl::Span<std::byte> out)>;

// The number of threads that make blocks, and the blocks of memory of each (File::NewWriteQueue).
struct BlockWriteShape {
  int threads = 1;
  int queue_depth = 1;
};

// The widest shape whose blocks fit in `buffer_bytes`, with at most `io_threads` threads; never less than one block.
BlockWriteShape ShapeOfBlockWrites(int64_t buffer_bytes, int io_threads);

// Fills the empty `file` with the `nbytes` bytes that `fill` makes, and blocks until no write is in flight; afterwards
// other writes to the file are allowed. Space is reserved first, so that a full disk is noticed before anything is
// written. Takes up to `queue_depth` blocks of memory for each thread of `pool`. Does not sync.
absl::Status WriteBlocks(File& file, int64_t nbytes, const BlockFiller& fill, ThreadPool& pool, int queue_depth);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_WRITE_BLOCKS_H_
