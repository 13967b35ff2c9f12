// SPDX-License-Identifier: Apache-2.0
//
// ReadQueue: large reads, of one file or of several, some of them in flight while the caller works on a finished one.
// Reads are finished in the order in which they were started. Cached bytes are copied from the page cache. Others are
// read by direct I/O through io_uring; by one direct read at a time if the kernel has no io_uring; by File::Read if the
// file has no direct I/O. Used by one thread.
//
//   queue.Start(file, range, memory);                                // up to `depth` of them
//   FSDP_ASSIGN_OR_RETURN(const std::byte* bytes, queue.Finish());   // of the oldest range
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

// The whole pages of a range, which direct I/O reads: the memory that a read needs.
inline ByteRange WholePages(const ByteRange& range) {
  const int64_t begin = range.offset / kPageBytes * kPageBytes;
  return {begin, (range.end() + kPageBytes - 1) / kPageBytes * kPageBytes - begin};
}

class ReadQueue final {
 public:
  explicit ReadQueue(int depth, UringUse use = UringUse::kIfPossible);
  ~ReadQueue();  // waits for reads in flight
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  bool empty() const { return started_.empty(); }
  bool full() const { return static_cast<int>(started_.size()) == depth_; }

  // True when Finish would not block, since the page cache had all bytes of the read that was started first.
  bool ready() const { return !empty() && !started_.front().in_flight && started_.front().is_done(); }

  // Starts to read `range` into `memory`, which has room for WholePages(range) and must live until the read is finished
  // or the queue is destroyed. Memory that is not aligned to 512 bytes is read to without direct I/O, which is slower.
  // The queue must not be full.
  void Start(std::shared_ptr<const File> file, const ByteRange& range, std::byte* memory);

  // Blocks until the read that was started first is done. Returns the address of the range in its memory; errors are as
  // for File::Read. The queue must not be empty.
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
  std::unique_ptr<Ring> ring_;  // null without io_uring
  std::deque<Read> started_;    // oldest first
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_READ_QUEUE_H_
