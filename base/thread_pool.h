// SPDX-License-Identifier: Apache-2.0
//
// ThreadPool: a fixed number of threads that share loops whose bodies can fail. The calling thread works too, so a pool
// of one thread is a plain loop, and a loop inside a loop's body makes progress however busy the pool is. Not for work
// that should outlive the call: that is a stream's job. Thread-safe.
//
//   FSDP_RETURN_IF_ERROR(pool->ParallelFor(files.size(), [&](int64_t i) { return Verify(files[i]); }));
#ifndef FSDP_BASE_THREAD_POOL_H_
#define FSDP_BASE_THREAD_POOL_H_

#include <chrono>
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

  // How a pool works beside something that matters more.
  struct Leisure {
    // As nice as nice(1) has it, or as the caller where that is nicer.
    int nice = 0;

    // What a thread takes of one core's time at most, in (0, 1]: it rests before a body until that is true again of the
    // one before. Niceness alone does not bound it, since a thread that has slept is let in at once.
    double processor_share = 1;

    // Nobody rests once the pool is as old.
    std::chrono::nanoseconds rests_for = std::chrono::nanoseconds::max();
  };

  // A pool at leisure. All its threads are its own: who calls ParallelFor only waits, unless it is one of them.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> CreateAtLeisure(int threads, std::string name,
                                                                     const Leisure& leisure);

  // No call may be in progress.
  ~ThreadPool();

  int threads() const { return threads_; }

  // For whoever has to wait for a pool at leisure: nobody rests any more, and one more thread for each of threads(), as
  // nice as the caller, helps with what is and will be going on as long as the pool lives, since nobody may take
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

  class Pace;
  static thread_local Pace* pace_;  // of this thread, when it is one of a pool at leisure

  ThreadPool(int threads, std::string name, bool caller_works);
  absl::Status Start(int count, const Leisure& leisure);
  void Work(const Leisure& leisure);
  void WorkOn(Loop& loop);
  void RestUntil(std::chrono::steady_clock::time_point due);

  const int threads_;
  const std::string name_;
  const bool caller_works_;
  const std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();

  std::mutex mutex_;
  std::condition_variable wake_;      // a loop was added, or closing_
  std::condition_variable left_;      // a worker left a loop
  std::condition_variable rest_;      // hurried_
  std::deque<Loop*> open_;            // guarded by mutex_; loops that workers may join, oldest first
  bool closing_ = false;              // guarded by mutex_
  bool hurried_ = false;              // guarded by mutex_
  std::vector<std::thread> workers_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_BASE_THREAD_POOL_H_
