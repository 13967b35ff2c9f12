// SPDX-License-Identifier: Apache-2.0
//
// WriteQueue: large writes to one file, several of them in flight. How they get there is chosen at run time by whoever
// opened the file (File::NewWriteQueue): direct I/O through io_uring, direct I/O by pwrite, or pwrite through the page
// cache. Used by one thread; several queues may write to one file.
//
// The kernel does not keep direct writes and the page cache apart where they meet in one page (the direct write cannot
// drop it, and the next fsync fails with EIO). So whatever goes through the page cache waits: each queue keeps what is
// not aligned until Finish, and nobody else writes to the file before.
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
  virtual ~WriteQueue() = default;  // waits for what is in flight

  // Memory of kBlockBytes for the bytes of the next Write; its pages are touched by whoever fills it.
  virtual absl::StatusOr<std::byte*> Buffer() = 0;

  // True when Write would copy what lies at `bytes` into a buffer first, since direct I/O cannot take it from there: a
  // caller that reads the bytes anyway copies them into Buffer itself.
  virtual bool NeedsCopy(const std::byte* bytes) const = 0;

  // Puts `bytes`, at most kBlockBytes, at `offset`. They are in the memory that Buffer gave last, or in memory that
  // stays as it is until Drain. Blocks while as many writes are in flight as may be. An error may be that of an earlier
  // write.
  virtual absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) = 0;

  // Waits until nothing is in flight. The first error.
  virtual absl::Status Drain() = 0;

  // Writes what is not aligned. Once all queues of the file are drained.
  virtual absl::Status Finish() = 0;
};

// What direct I/O wants of a file: both are powers of two; 0 where there is none.
struct DirectAlignment {
  int64_t memory = 0;
  int64_t offset = 0;
};

// kNever: as on a kernel without io_uring, or with one that lets nobody use it; for tests.
enum class UringUse : uint8_t { kIfPossible, kNever };

// A queue of one write at a time, by `write`.
std::unique_ptr<WriteQueue> NewSynchronousWriteQueue(
    std::function<absl::Status(int64_t offset, absl::Span<const std::byte> bytes)> write);

// A queue of direct writes to `direct_fd`: through io_uring, so that of `depth` blocks all but the one that is being
// made are in flight, or one at a time where there is none. Finish puts what is not aligned through `write`. `name` is
// for errors. The file descriptor must outlive it.
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

  // A queue that nobody else has; given back unless an error stops everything.
  std::unique_ptr<WriteQueue> Take();
  void Give(std::unique_ptr<WriteQueue> queue);

  // Of all queues, once all have been given back. The first error.
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
