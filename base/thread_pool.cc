// SPDX-License-Identifier: Apache-2.0

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

// The pool that this thread is of.
thread_local const ThreadPool* current = nullptr;

// Processor time that this thread has taken.
std::chrono::nanoseconds ProcessorTime() {
  timespec time = {};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

// One call of ParallelFor; it lives on the caller's stack, and the caller waits for `workers` to reach 0.
struct ThreadPool::Loop {
  Loop(int64_t count, const std::function<absl::Status(int64_t)>& body) : count(count), body(body) {}

  const int64_t count;
  const std::function<absl::Status(int64_t)>& body;
  std::atomic<int64_t> next{0};  // the first index that nobody has taken
  std::atomic<bool> failed{false};
  int workers = 0;  // pool threads inside WorkOn; guarded by the pool's mutex

  std::mutex mutex;
  int64_t failed_index = 0;  // guarded by mutex; of `status`
  absl::Status status;       // guarded by mutex
};

// When a thread at leisure may take its next body. Bodies may be inside of bodies.
class ThreadPool::Pace {
 public:
  Pace(double share, Clock::time_point until) : share_(share), until_(until) {}

  struct Begin {
    Clock::time_point at = Clock::now();
    std::chrono::nanoseconds processor_time = ProcessorTime();
  };

  // A body is done. What it waited for, the disk say, was rest.
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

thread_local ThreadPool::Pace* ThreadPool::pace_ = nullptr;

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(int threads, std::string name) {
  if (threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("thread pool \"", name, "\": cannot have ", threads, " threads"));
  }
  std::unique_ptr<ThreadPool> pool(new ThreadPool(threads, std::move(name), /*caller_works=*/true));
  FSDP_RETURN_IF_ERROR(pool->Start(threads - 1, {}));
  return pool;
}

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::CreateAtLeisure(int threads, std::string name,
                                                                        const Leisure& leisure) {
  if (threads < 1 || !(leisure.processor_share > 0 && leisure.processor_share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("thread pool \"", name, "\": cannot have ", threads,
                                                   " threads with ", leisure.processor_share,
                                                   " of a core each, expected at least 1, and more than 0 up to 1"));
  }
  std::unique_ptr<ThreadPool> pool(new ThreadPool(threads, std::move(name), /*caller_works=*/false));
  FSDP_RETURN_IF_ERROR(pool->Start(threads, leisure));
  return pool;
}

ThreadPool::ThreadPool(int threads, std::string name, bool caller_works)
    : threads_(threads), name_(std::move(name)), caller_works_(caller_works) {}

absl::Status ThreadPool::Start(int count, const Leisure& leisure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < count; ++i) {
    try {
      workers_.emplace_back([this, leisure] { Work(leisure); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("thread pool \"", name_, "\": cannot start thread ", i + 1, " of ", count, ": ", error.what()));
    }
  }
  return absl::OkStatus();
}

void ThreadPool::Hurry() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    hurried_ = true;
  }
  rest_.notify_all();
  (void)Start(threads_, {});  // without more threads all goes on as before
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
    // Whoever leaves a loop takes it out of open_, since nothing is left in it.
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

void ThreadPool::Work(const Leisure& leisure) {
  current = this;
  SetThreadName(name_);
  // On Linux this is the thread's own, and everybody may become nicer.
  if (leisure.nice > getpriority(PRIO_PROCESS, 0)) (void)setpriority(PRIO_PROCESS, 0, leisure.nice);
  const bool forever = leisure.rests_for > Clock::time_point::max() - created_;
  Pace own(leisure.processor_share, forever ? Clock::time_point::max() : created_ + leisure.rests_for);
  if (leisure.processor_share < 1) pace_ = &own;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return closing_ || !open_.empty(); });
    if (closing_) return;
    Loop* loop = open_.front();
    ++loop->workers;
    lock.unlock();
    WorkOn(*loop);
    lock.lock();
    // Nothing is left to take in this loop, so nobody else should join it.
    open_.erase(std::remove(open_.begin(), open_.end(), loop), open_.end());
    --loop->workers;
    left_.notify_all();
  }
}

void ThreadPool::RestUntil(Clock::time_point due) {
  std::unique_lock<std::mutex> lock(mutex_);
  rest_.wait_until(lock, due, [&] { return hurried_; });
}

void ThreadPool::WorkOn(Loop& loop) {
  Pace* const paced = current == this ? pace_ : nullptr;
  // An index that was taken is always run: so every index below a failed one is, and the lowest error is found.
  while (!loop.failed.load(std::memory_order_relaxed)) {
    if (paced != nullptr && loop.next.load(std::memory_order_relaxed) < loop.count) RestUntil(paced->due());
    const int64_t index = loop.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= loop.count) return;
    const auto begin = paced != nullptr ? std::make_optional<Pace::Begin>() : std::nullopt;
    absl::Status status = loop.body(index);
    if (paced != nullptr) paced->Done(*begin);
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
