// SPDX-License-Identifier: Apache-2.0
//
// ThreadPool: a fixed number of threads that share loops whose bodies can fail. The calling thread works too, so a pool
// of one thread is a plain loop, and a loop inside a loop's body makes progress however busy the pool is. Not for work
// that should outlive the call: that is a stream's job. Thread-safe.
//
//   RETURN_IF_ERROR(pool->ParallelFor(files.size(), [&](int64_t i) { return Verify(files[i]); }));
#ifndef FSDP_BASE_THREAD_POOL_H_
#define FSDP_BASE_THREAD_POOL_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

class ThreadPool {
 public:
  // Work of one call runs on at most `threads` threads, the caller's included. `name` is what debuggers show.
  // kInvalidArgument for less than one thread; kResourceExhausted when the system has none left.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Create(int threads, std::string name);

  // A pool whose threads are as nice as nice(1) has it, or as the caller where that is nicer, for work beside something
  // that matters more. All of them are the pool's own: who calls ParallelFor only waits, unless it is one of them.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> CreateNice(int threads, std::string name, int nice);

  // No call may be in progress.
  ~ThreadPool();

  int threads() const { return threads_; }

  // Starts one more thread for each of threads(), as nice as the caller, which help with what is and will be going on
  // as long as the pool lives. For whoever has to wait for a nice pool, on cores that others keep busy: nobody may take
  // niceness back without a privilege.
  void Hurry();

  // Calls body(0), ..., body(count - 1), started in this order, and blocks until all that were started have returned.
  // After an error no more are started. Returns the error of the lowest index that failed, which does not depend on
  // timing if the bodies do not.
  absl::Status ParallelFor(int64_t count, const std::function<absl::Status(int64_t)>& body);

  // As ParallelFor over the tasks.
  absl::Status Run(const std::vector<std::function<absl::Status()>>& tasks);

 private:
  struct Loop;

  ThreadPool(int threads, std::string name, int nice);
  absl::Status Start(int count, int nice);
  void Work(int nice);
  static void WorkOn(Loop& loop);

  const int threads_;
  const std::string name_;
  const bool caller_works_;

  std::mutex mutex_;
  std::condition_variable wake_;      // a loop was added, or closing_
  std::condition_variable left_;      // a worker left a loop
  std::deque<Loop*> open_;            // guarded by mutex_; loops that workers may join, oldest first
  bool closing_ = false;              // guarded by mutex_
  std::vector<std::thread> workers_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_BASE_THREAD_POOL_H_
