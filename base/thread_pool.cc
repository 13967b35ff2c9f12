// SPDX-License-Identifier: Apache-2.0

#include "base/thread_pool.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace fsdp {
namespace {

// Linux refuses longer thread names.
constexpr size_t kMaxThreadName = 15;

// The pool that this thread is of.
thread_local const ThreadPool* current = nullptr;

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

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(int threads, std::string name) {
  return CreateNice(threads, std::move(name), 0);
}

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::CreateNice(int threads, std::string name, int nice) {
  if (threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("thread pool \"", name, "\": cannot have ", threads, " threads"));
  }
  std::unique_ptr<ThreadPool> pool(new ThreadPool(threads, std::move(name), nice));
  RETURN_IF_ERROR(pool->Start(nice > 0 ? threads : threads - 1, nice));
  return pool;
}

ThreadPool::ThreadPool(int threads, std::string name, int nice)
    : threads_(threads), name_(name.substr(0, kMaxThreadName)), caller_works_(nice <= 0) {}

absl::Status ThreadPool::Start(int count, int nice) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < count; ++i) {
    try {
      workers_.emplace_back([this, nice] { Work(nice); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("thread pool \"", name_, "\": cannot start thread ", i + 1, " of ", count, ": ", error.what()));
    }
  }
  return absl::OkStatus();
}

// Without more threads all goes on as before.
void ThreadPool::Hurry() { (void)Start(threads_, 0); }

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

void ThreadPool::Work(int nice) {
  current = this;
  pthread_setname_np(pthread_self(), name_.c_str());
  // On Linux this is the thread's own, and everybody may become nicer.
  if (nice > getpriority(PRIO_PROCESS, 0)) (void)setpriority(PRIO_PROCESS, 0, nice);
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

void ThreadPool::WorkOn(Loop& loop) {
  // An index that was taken is always run: so every index below a failed one is, and the lowest error is found.
  while (!loop.failed.load(std::memory_order_relaxed)) {
    const int64_t index = loop.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= loop.count) return;
    absl::Status status = loop.body(index);
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
