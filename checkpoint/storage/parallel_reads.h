// SPDX-License-Identifier: Apache-2.0
//
// ReadInParallel: many large reads on the threads of a pool, each thread with some of them in flight (read_queue.h), so
// that the disk is busy while the threads digest and copy what has come. The readers of checkpoint/ are callers of it.
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

// No read is longer.
inline constexpr int64_t kMaxReadBytes = kBlockBytes;

struct LargeRead {
  std::shared_ptr<const File> file;  // null: nothing is left to be read, and ReadDone is not called
  ByteRange range;
  // Where whole pages can be read to, aligned to 512 bytes; null: to memory that is there for ReadDone.
  std::byte* target = nullptr;
};

// What read `i` is.
using ReadBegin = std::function<absl::StatusOr<LargeRead>(int64_t i)>;

// The bytes of read `i`, there until it returns, or why there are none: what ReadBegin said, or the read.
using ReadDone = std::function<absl::Status(int64_t i, const absl::StatusOr<const std::byte*>& bytes)>;

// Calls `begin` and then `done` for 0, ..., count - 1, begun in this order, on several threads. After an error no more
// are begun. Returns the error of the lowest index that failed. Takes up to five times kMaxReadBytes per thread.
absl::Status ReadInParallel(ThreadPool& pool, int64_t count, const ReadBegin& begin, const ReadDone& done);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_PARALLEL_READS_H_
