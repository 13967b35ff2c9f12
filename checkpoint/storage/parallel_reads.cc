// SPDX-License-Identifier: Apache-2.0
//
// Each thread has its own ReadQueue and takes the next index from one atomic counter, so threads share no lock and the
// disk sees reads in about the order of the file. A thread repeats: start reads until kDepth are in flight, wait for
// the oldest, start one more, and only then deliver the oldest. Its kDepth + 1 buffers are a ring: buffer i is free
// again when read i + kDepth + 1 begins, since reads are finished in the order in which they were started.
#include "fsdp/checkpoint/storage/parallel_reads.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "fsdp/checkpoint/storage/read_queue.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

// Reads in flight for each thread.
constexpr int kDepth = 4;

// Buffers of each thread: one to work on while kDepth reads are in flight.
constexpr int kBlocks = kDepth + 1;

class Reads {
 public:
  Reads(int64_t count, const ReadBegin& begin, const ReadDone& done) : count_(count), begin_(begin), done_(done) {}

  // One thread's share.
  void Work() {
    Started started;
    while (true) {
      StartMore(started);
      if (started.queue.empty()) return;
      const int64_t i = started.indexes[started.finished++ % kBlocks];
      const absl::StatusOr<const std::byte*> bytes = started.queue.Finish();
      // Before the work on `bytes`: a disk that reports completions in batches may have finished all reads by now, and
      // would idle while this thread digests.
      StartMore(started);
      Done(i, bytes);
    }
  }

  absl::Status status() const { return status_; }

 private:
  // The reads of one thread.
  struct Started {
    std::array<AlignedBlock, kBlocks> memory;
    std::array<int64_t, kBlocks> indexes;
    int64_t started = 0;
    int64_t finished = 0;
    ReadQueue queue{kDepth};  // last, so that it is destroyed before the memory that it reads to
  };

  // Stops early after a read from the page cache: its bytes are processed immediately, while they are in the core's
  // cache.
  void StartMore(Started& all) {
    while (!all.queue.full() && !all.queue.ready()) {
      const int64_t i = Take();
      if (i < 0) return;
      absl::StatusOr<LargeRead> read = begin_(i);
      if (!read.ok()) {
        Done(i, read.status());
        continue;
      }
      if (read->file == nullptr) continue;
      AlignedBlock& own = all.memory[all.started % kBlocks];
      if (read->target == nullptr && own == nullptr) own = NewAlignedBlock(kMaxReadBytes + 2 * kPageBytes);
      all.queue.Start(std::move(read->file), read->range, read->target != nullptr ? read->target : own.get());
      all.indexes[all.started++ % kBlocks] = i;
    }
  }

  // The next index; -1 at the end or after an error.
  int64_t Take() {
    if (failed_.load(std::memory_order_relaxed)) return -1;
    const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    return i < count_ ? i : -1;
  }

  // The choice among several errors must not depend on timing, so the lowest index wins. All indexes below a failed one
  // have begun before it, so they are finished and can still replace it.
  void Done(int64_t i, const absl::StatusOr<const std::byte*>& bytes) {
    absl::Status status = done_(i, bytes);
    if (status.ok()) return;
    failed_.store(true, std::memory_order_relaxed);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok() && failed_index_ < i) return;
    failed_index_ = i;
    status_ = std::move(status);
  }

  const int64_t count_;
  const ReadBegin& begin_;
  const ReadDone& done_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  int64_t failed_index_ = 0;  // guarded by mutex_; the index of status_
  absl::Status status_;       // guarded by mutex_
};

}  // namespace

absl::Status ReadInParallel(ThreadPool& pool, int64_t count, const ReadBegin& begin, const ReadDone& done) {
  Reads reads(count, begin, done);
  (void)pool.ParallelFor(std::min<int64_t>(pool.threads(), count), [&](int64_t) {
    reads.Work();
    return absl::OkStatus();
  });
  return reads.status();
}

}  // namespace fsdp
