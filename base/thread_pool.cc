// SPDX-License-Identifier: Apache-2.0
//
// Every call of ParallelFor puts a Loop, which is on the caller's stack, into open_. A worker joins the oldest open
// loop and takes indices from its counter until none is left; then it removes the loop from open_ (all its remaining
// bodies already run) and looks for the next one. The caller takes indices too, and returns after the last worker has
// left its loop: that count, guarded by the pool's mutex, keeps the Loop alive for the workers.
//
// There is one queue of loops and one counter per loop, and no queue per thread to steal from: bodies here take
// milliseconds (a block read, digested or written), so the counter is hardly contended.
//
// A caller that works on its own loop does not depend on a free worker, so nested loops cannot deadlock. A background
// pool's caller does not work, but a worker of that pool that opens a nested loop does.
#include "fsdp/base/thread_pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_name.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// The pool that this thread belongs to; null outside of pools.
thread_local const ThreadPool* current = nullptr;

// Processor time that this thread has used.
std::chrono::nanoseconds ProcessorTime() {
  timespec time = {};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

// A call of ParallelFor. It is on the caller's stack, and the caller waits for `workers` to reach 0.
struct ThreadPool::Loop {
  Loop(int64_t count, const std::function<absl::Status(int64_t)>& body) : count(count), body(body) {}

  const int64_t count;
  const std::function<absl::Status(int64_t)>& body;
  std::atomic<int64_t> next{0};  // the first index that no thread has taken
  std::atomic<bool> failed{false};
  int workers = 0;  // pool threads inside WorkOn; guarded by the pool's mutex

  std::mutex mutex;
  int64_t failed_index = 0;  // guarded by mutex; the index whose error is `status`
  absl::Status status;       // guarded by mutex
};

// Decides when a thread with a bounded processor share may start its next body. A body that used c of processor time
// and started at t permits the next one at t + c / share. So time in which the body waited, for a disk say, counts as
// sleep. Bodies may nest; the measurement of the outer one includes the inner ones.
class ThreadPool::Throttle {
 public:
  Throttle(double share, Clock::time_point until) : share_(share), until_(until) {}

  struct Begin {
    Clock::time_point at = Clock::now();
    std::chrono::nanoseconds processor_time = ProcessorTime();
  };

  void Done(const Begin& begin) {
    const std::chrono::duration<double, std::nano> lasts = (ProcessorTime() - begin.processor_time) / share_;
    due_ = lasts < until_ - begin.at ? begin.at + std::chrono::duration_cast<Clock::duration>(lasts) : until_;
  }

  Clock::time_point due() const { return due_; }

 private:
  const double share_;
  const Clock::time_point until_;
  Clock::time_point due_;
};

thread_local ThreadPool::Throttle* ThreadPool::throttle_ = nullptr;

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(int threads, std::string name) {
  if (threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("thread pool \"", name, "\": cannot have ", threads, " threads"));
  }
  std::unique_ptr<ThreadPool> pool(new ThreadPool(threads, std::move(name), /*caller_works=*/true));
  FSDP_RETURN_IF_ERROR(pool->Start(threads - 1, {}));
  return pool;
}

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::CreateBackground(int threads, std::string name,
                                                                         const BackgroundOptions& options) {
  if (threads < 1 || !(options.processor_share > 0 && options.processor_share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("thread pool \"", name, "\": cannot have ", threads,
                                                   " threads with ", options.processor_share,
                                                   " of a core each, expected at least 1, and more than 0 up to 1"));
  }
  std::unique_ptr<ThreadPool> pool(new ThreadPool(threads, std::move(name), /*caller_works=*/false));
  FSDP_RETURN_IF_ERROR(pool->Start(threads, options));
  return pool;
}

ThreadPool::ThreadPool(int threads, std::string name, bool caller_works)
    : threads_(threads), name_(std::move(name)), caller_works_(caller_works) {}

absl::Status ThreadPool::Start(int count, const BackgroundOptions& options) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < count; ++i) {
    try {
      workers_.emplace_back([this, options] { Work(options); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("thread pool \"", name_, "\": cannot start thread ", i + 1, " of ", count, ": ", error.what()));
    }
  }
  return absl::OkStatus();
}

void ThreadPool::Boost() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_boosted_ = true;
  }
  boosted_.notify_all();
  (void)Start(threads_, {});  // if no thread can be started, the pool continues with the threads it has
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

absl::Status ThreadPool::ParallelFor(int64_t count, const std::function<absl::Status(int64_t)>& body) {
  if (count <= 0) return absl::OkStatus();
  Loop loop(count, body);
  const bool works = caller_works_ || current == this;
  const bool opens = !works || count > 1;
  if (opens) {
    int64_t helpers = works ? count - 1 : count;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_.push_back(&loop);
      helpers = std::min(helpers, static_cast<int64_t>(workers_.size()));
    }
    for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
  }
  if (works) WorkOn(loop);
  if (opens) {
    std::unique_lock<std::mutex> lock(mutex_);
    // A worker that leaves a loop removes it from open_, since the loop has no index left.
    if (!works) left_.wait(lock, [&] { return std::find(open_.begin(), open_.end(), &loop) == open_.end(); });
    open_.erase(std::remove(open_.begin(), open_.end(), &loop), open_.end());
    left_.wait(lock, [&] { return loop.workers == 0; });
  }
  // All workers have left, and the pool's mutex has made their writes visible.
  return loop.status;
}

absl::Status ThreadPool::Run(const std::vector<std::function<absl::Status()>>& tasks) {
  return ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i) { return tasks[i](); });
}

void ThreadPool::Work(const BackgroundOptions& options) {
  current = this;
  SetThreadName(name_);
  // On Linux niceness is per thread, and raising it needs no privilege.
  if (options.nice > getpriority(PRIO_PROCESS, 0)) (void)setpriority(PRIO_PROCESS, 0, options.nice);
  const bool forever = options.throttle_for > Clock::time_point::max() - created_;
  Throttle throttle(options.processor_share, forever ? Clock::time_point::max() : created_ + options.throttle_for);
  if (options.processor_share < 1) throttle_ = &throttle;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return closing_ || !open_.empty(); });
    if (closing_) return;
    Loop* loop = open_.front();
    ++loop->workers;
    lock.unlock();
    WorkOn(*loop);
    lock.lock();
    // The loop has no index left, so no other worker should join it.
    open_.erase(std::remove(open_.begin(), open_.end(), loop), open_.end());
    --loop->workers;
    left_.notify_all();
  }
}

void ThreadPool::SleepUntil(Clock::time_point due) {
  std::unique_lock<std::mutex> lock(mutex_);
  boosted_.wait_until(lock, due, [&] { return is_boosted_; });
}

void ThreadPool::WorkOn(Loop& loop) {
  Throttle* const throttle = current == this ? throttle_ : nullptr;
  // Every index that was taken is run, even after a failure. Indices are taken in order, so all below a failed one have
  // been taken: the lowest index that fails is always found, and the reported error does not depend on timing.
  while (!loop.failed.load(std::memory_order_relaxed)) {
    if (throttle != nullptr && loop.next.load(std::memory_order_relaxed) < loop.count) SleepUntil(throttle->due());
    const int64_t index = loop.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= loop.count) return;
    const auto begin = throttle != nullptr ? std::make_optional<Throttle::Begin>() : std::nullopt;
    absl::Status status = loop.body(index);
    if (throttle != nullptr) throttle->Done(*begin);
    if (status.ok()) continue;
    loop.failed.store(true, std::memory_order_relaxed);
    std::lock_guard<std::mutex> lock(loop.mutex);
    if (loop.status.ok() || index < loop.failed_index) {
      loop.failed_index = index;
      loop.status = std::move(status);
    }
  }
}

}  // namespace fsdp
