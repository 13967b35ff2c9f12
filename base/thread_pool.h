// SPDX-License-Identifier: Apache-2.0
//
// ThreadPool: a fixed number of threads that share loops whose bodies can fail. The calling thread works too, so a pool
// of one thread is a plain loop, and a loop inside a loop's body makes progress however busy the pool is. Not for work
// that should outlive the call; use a stream for that. Thread-safe.
//
// A background pool runs its work at a lower priority and with a bounded share of the processor, so that it slows down
// the rest of the program by a known amount. The threads of an asynchronous save use one while training continues.
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
  // The work of one call runs on at most `threads` threads, including the caller's. `name` is the name in debuggers.
  // kInvalidArgument for less than one thread; kResourceExhausted if the system cannot start one.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Create(int threads, std::string name);

  // The priority of a background pool.
  struct BackgroundOptions {
    // The threads' niceness, 0 to 19; the niceness of the thread that calls CreateBackground if that is higher.
    int nice = 0;

    // Upper bound on the share of one core's time that each thread takes, in (0, 1]. After each body a thread sleeps
    // until its share is met again. Niceness is not a bound: the scheduler runs a thread that has slept immediately.
    double processor_share = 1;

    // Throttling to the processor share ends once the pool has existed for this long. The niceness stays.
    std::chrono::nanoseconds throttle_for = std::chrono::nanoseconds::max();
  };

  // A background pool of `threads` threads. A thread that calls ParallelFor only waits, unless it is one of them: work
  // on the caller's thread would run at the caller's priority. kInvalidArgument also for a share outside (0, 1].
  static absl::StatusOr<std::unique_ptr<ThreadPool>> CreateBackground(int threads, std::string name,
                                                                      const BackgroundOptions& options);

  // No call may be in progress.
  ~ThreadPool();

  int threads() const { return threads_; }

  // Call when a thread starts to wait for this background pool. Stops throttling and adds threads() workers at the
  // caller's priority, because an unprivileged process cannot lower the niceness of a thread again. They help with the
  // loops in progress and with later ones. Lasts until the pool is destroyed.
  void Boost();

  // Calls body(0), ..., body(count - 1), started in this order, and blocks until all that were started have returned.
  // Starts no more after an error. Returns the error of the lowest index that failed, which does not depend on timing
  // if the bodies do not.
  absl::Status ParallelFor(int64_t count, const std::function<absl::Status(int64_t)>& body);

  // ParallelFor over the tasks.
  absl::Status Run(const std::vector<std::function<absl::Status()>>& tasks);

 private:
  struct Loop;

  class Throttle;
  static thread_local Throttle* throttle_;  // this thread's, if its pool has a processor share below 1

  ThreadPool(int threads, std::string name, bool caller_works);
  absl::Status Start(int count, const BackgroundOptions& options);
  // A worker thread: joins the oldest open loop, again and again, until the pool closes.
  void Work(const BackgroundOptions& options);
  // Takes indices of the loop and runs their bodies until no index is left or a body has failed.
  void WorkOn(Loop& loop);
  void SleepUntil(std::chrono::steady_clock::time_point due);

  const int threads_;
  const std::string name_;
  const bool caller_works_;
  const std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();

  std::mutex mutex_;
  std::condition_variable wake_;      // a loop was added, or closing_
  std::condition_variable left_;      // a worker left a loop
  std::condition_variable boosted_;   // is_boosted_
  std::deque<Loop*> open_;            // guarded by mutex_; loops that workers may join, oldest first
  bool closing_ = false;              // guarded by mutex_
  bool is_boosted_ = false;           // guarded by mutex_
  std::vector<std::thread> workers_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_BASE_THREAD_POOL_H_
