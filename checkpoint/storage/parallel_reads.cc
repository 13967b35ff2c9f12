// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/parallel_reads.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "checkpoint/storage/read_queue.h"
#include "checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

// Reads in flight for each thread: one more than keeps a disk busy while the thread works on what has come.
constexpr int kDepth = 4;

class Reads {
 public:
  Reads(int64_t count, const ReadBegin& begin, const ReadDone& done) : count_(count), begin_(begin), done_(done) {}

  // One thread's share.
  void Work() {
    // Reads are finished in order, so the memory of one is free again when it is its turn.
    std::array<AlignedBlock, kDepth> memory;
    std::array<int64_t, kDepth> indexes;
    ReadQueue queue(kDepth);
    int64_t started = 0;
    int64_t finished = 0;
    while (true) {
      // What the page cache had is worked on at once, while it is hot.
      while (!queue.full() && !queue.ready()) {
        const int64_t i = Take();
        if (i < 0) break;
        absl::StatusOr<LargeRead> read = begin_(i);
        if (!read.ok()) {
          Done(i, read.status());
          continue;
        }
        if (read->file == nullptr) continue;
        AlignedBlock& own = memory[started % kDepth];
        if (read->target == nullptr && own == nullptr) own = NewAlignedBlock(kMaxReadBytes + 2 * kPageBytes);
        queue.Start(std::move(read->file), read->range, read->target != nullptr ? read->target : own.get());
        indexes[started++ % kDepth] = i;
      }
      if (queue.empty()) return;
      const int64_t i = indexes[finished++ % kDepth];
      Done(i, queue.Finish());
    }
  }

  absl::Status status() const { return status_; }

 private:
  // -1 when there is no more.
  int64_t Take() {
    if (failed_.load(std::memory_order_relaxed)) return -1;
    const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    return i < count_ ? i : -1;
  }

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
  int64_t failed_index_ = 0;  // guarded by mutex_; of status_
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
