// SPDX-License-Identifier: Apache-2.0
//
// ReadQueue: large reads, of one file or of several, some of them in flight while the caller works on one that is done.
// They are done in the order in which they were started. Direct I/O through io_uring where file and kernel have both;
// one direct read at a time where the kernel has no io_uring; File::Read where the file has no direct I/O. What the
// page cache has is copied from there. A queue is used by one thread.
//
//   queue.Start(file, range, memory);                           // up to `depth` of them
//   FSDP_ASSIGN_OR_RETURN(const std::byte* bytes, queue.Finish());   // of the range that was started first
#ifndef FSDP_CHECKPOINT_STORAGE_READ_QUEUE_H_
#define FSDP_CHECKPOINT_STORAGE_READ_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

// Direct I/O reads whole pages, so this is what a range takes in memory.
inline constexpr int64_t kPageBytes = 4096;
inline ByteRange WholePages(const ByteRange& range) {
  const int64_t begin = range.offset / kPageBytes * kPageBytes;
  return {begin, (range.end() + kPageBytes - 1) / kPageBytes * kPageBytes - begin};
}

class ReadQueue final {
 public:
  explicit ReadQueue(int depth, UringUse use = UringUse::kIfPossible);
  ~ReadQueue();  // waits for what is in flight
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  bool empty() const { return started_.empty(); }
  bool full() const { return static_cast<int>(started_.size()) == depth_; }

  // True when the read that was started first is done already, since the page cache had all of it.
  bool ready() const { return !empty() && !started_.front().in_flight && started_.front().is_done(); }

  // Begins to read `range` into `memory`, which has room for WholePages(range) and stays until the read is finished or
  // the queue is gone; aligned to 512 bytes, or else the read is a slower one. The queue must not be full.
  void Start(std::shared_ptr<const File> file, const ByteRange& range, std::byte* memory);

  // Waits for the read that was started first. Where in its memory the range begins; errors are File::Read's. The queue
  // must not be empty.
  absl::StatusOr<const std::byte*> Finish();

 private:
  struct Ring;

  struct Read {
    std::shared_ptr<const File> file;
    File::Descriptors descriptors;  // of the file
    ByteRange range;
    ByteRange pages;
    std::byte* memory = nullptr;
    int64_t present = 0;     // leading bytes of the pages that are in memory
    bool in_flight = false;  // in the ring

    bool is_done() const { return pages.offset + present >= range.end(); }
    bool is_direct() const;
  };

  bool Submit(Read& read);
  void AwaitOne();
  static absl::Status Complete(Read& read);

  const int depth_;
  std::unique_ptr<Ring> ring_;  // null where there is none
  std::deque<Read> started_;    // oldest first
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_READ_QUEUE_H_
