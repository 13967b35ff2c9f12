// SPDX-License-Identifier: Apache-2.0
//
// WriteQueue: large writes to one file, several of them in flight. File::NewWriteQueue chooses the method at run time:
// direct I/O through io_uring, direct I/O by pwrite, or pwrite through the page cache. A queue is used by one thread;
// several queues may write to one file.
//
// Direct writes and writes through the page cache must not meet in one page: the direct write cannot drop the page from
// the cache, and the next fsync fails with EIO. So each queue keeps the unaligned bytes until Finish, which is called
// once all queues of the file are drained, and no other writes to the file are allowed before.
//
//   FSDP_ASSIGN_OR_RETURN(std::byte* scratch, queue->Buffer());
//   ... fill scratch, or find the bytes elsewhere ...
//   FSDP_RETURN_IF_ERROR(queue->Write(offset, absl::MakeConstSpan(scratch, nbytes)));
//   FSDP_RETURN_IF_ERROR(queue->Drain());     // all queues of the file
//   FSDP_RETURN_IF_ERROR(queue->Finish());    // then other writes, then File::Sync
#ifndef FSDP_CHECKPOINT_STORAGE_WRITE_QUEUE_H_
#define FSDP_CHECKPOINT_STORAGE_WRITE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/aligned_block.h"
#include "fsdp/checkpoint/storage/byte_range.h"

namespace fsdp {

class File;

class WriteQueue {
 public:
  virtual ~WriteQueue() = default;  // waits for writes in flight

  // Memory of kBlockBytes for the bytes of the next Write. Its pages are not touched yet, so the thread that fills it
  // pays for the page faults. Blocks while all buffers are in flight.
  virtual absl::StatusOr<std::byte*> Buffer() = 0;

  // True when `bytes` is not aligned for direct I/O, so that Write would copy from there into a buffer first. A caller
  // that reads the bytes anyway, to digest them, saves a pass by copying them into Buffer itself.
  virtual bool NeedsCopy(const std::byte* bytes) const = 0;

  // Writes `bytes`, at most kBlockBytes, at `offset`. They must be in the memory that Buffer returned last, or in
  // memory that does not change until Drain. Blocks while the maximum number of writes is in flight. May return the
  // error of an earlier write.
  virtual absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) = 0;

  // Blocks until no write is in flight. Returns the first error of any write.
  virtual absl::Status Drain() = 0;

  // Writes the bytes that are not aligned, through the page cache. Call it once all queues of the file are drained.
  virtual absl::Status Finish() = 0;
};

// kNever: as on a kernel without io_uring, or on one that forbids it; for tests.
enum class UringUse : uint8_t { kIfPossible, kNever };

// A queue that calls `write` for each Write and returns its error immediately.
std::unique_ptr<WriteQueue> NewSynchronousWriteQueue(
    std::function<absl::Status(int64_t offset, absl::Span<const std::byte> bytes)> write);

// A queue of direct writes to `direct_fd`, which must outlive it: through io_uring, with up to `depth` - 1 blocks in
// flight while the caller fills one, or one write at a time without io_uring. Finish passes the unaligned bytes to
// `write`. `name` is the path that errors name.
std::unique_ptr<WriteQueue> NewDirectWriteQueue(
    int direct_fd, const DirectAlignment& alignment, int depth, std::string name,
    std::function<absl::Status(int64_t offset, absl::Span<const std::byte> bytes)> write,
    UringUse use = UringUse::kIfPossible);

// The write queues of one file, one for each thread that writes. Take and Give are thread-safe, Drain and Finish are
// not.
//
//   std::unique_ptr<WriteQueue> queue = queues.Take();
//   ... write a block ...
//   queues.Give(std::move(queue));
//   ... when all threads are done:
//   FSDP_RETURN_IF_ERROR(queues.Drain());
//   FSDP_RETURN_IF_ERROR(queues.Finish());
class WriteQueues {
 public:
  // Each queue has `depth` blocks of memory (File::NewWriteQueue). `file` must outlive it.
  WriteQueues(File& file, int depth) : file_(file), depth_(depth) {}

  // A queue only for the calling thread. Give it back when the write is done; not after an error, which ends all
  // writes.
  std::unique_ptr<WriteQueue> Take();
  void Give(std::unique_ptr<WriteQueue> queue);

  // Waits for all writes of all queues; call after the last Give. Returns the first error.
  absl::Status Drain();
  absl::Status Finish();  // after Drain

 private:
  File& file_;
  const int depth_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<WriteQueue>> free_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_WRITE_QUEUE_H_
