// SPDX-License-Identifier: Apache-2.0
//
// ReadInParallel: many large reads on the threads of a pool, each thread with some of them in flight (read_queue.h), so
// that the disk is busy while the threads digest and copy the blocks that have arrived. Every reader of whole blocks in
// checkpoint/ uses it, for example loading and verification.
#ifndef FSDP_CHECKPOINT_STORAGE_PARALLEL_READS_H_
#define FSDP_CHECKPOINT_STORAGE_PARALLEL_READS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The maximum length of a read.
inline constexpr int64_t kMaxReadBytes = kBlockBytes;

struct LargeRead {
  std::shared_ptr<const File> file;  // null: ReadBegin has completed the work itself, and ReadDone is not called
  ByteRange range;
  // Memory of the caller for WholePages(range), aligned to 512 bytes; null: a buffer that is valid until ReadDone
  // returns.
  std::byte* target = nullptr;
};

// Describes read `i`, or fails it. Called by the threads of the pool.
using ReadBegin = std::function<absl::StatusOr<LargeRead>(int64_t i)>;

// Takes the bytes of read `i`, which are valid until it returns, or the error of ReadBegin or of the read. Called by
// the threads of the pool.
using ReadDone = std::function<absl::Status(int64_t i, const absl::StatusOr<const std::byte*>& bytes)>;

// Calls `begin` and then `done` for 0, ..., count - 1 on several threads; reads begin in this order. Blocks until all
// have ended. After an error no more reads begin. Returns the error of the lowest index that failed. Takes up to five
// times kMaxReadBytes of memory per thread.
absl::Status ReadInParallel(ThreadPool& pool, int64_t count, const ReadBegin& begin, const ReadDone& done);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_PARALLEL_READS_H_
