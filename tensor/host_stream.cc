// SPDX-License-Identifier: Apache-2.0
//
// The worker takes all pending work in one swap and runs it without the lock, so that a producer waits for tens of
// nanoseconds at most. How the two threads meet:
//
//   Push      under mutex_: append; raise has_pending_; take asleep_ and, if it was set, notify after unlocking
//   worker    1. spin on has_pending_ for some microseconds, while a core is idle
//             2. under mutex_: nothing pending -> asleep_ = true, wait for wake_
//             3. swap the vector out; run its pieces in order; destroy each before the next
//
// asleep_ makes a notification, a system call, the exception: a worker that spins or runs does not need one. No wake-up
// is lost, because asleep_ and pending_ change under one mutex.
//
// An error stays in status_, which only the worker reads and writes; others learn it through events, which carry a
// copy.

#include "fsdp/tensor/host_stream.h"

#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/check.h"
#include "fsdp/base/thread_name.h"

namespace fsdp {
namespace {

// A copy that shares no reference count. Abseil as distributions package it is not built for the race detector, which
// then reports every error whose last reference is dropped on a different thread than the one that copied it.
absl::Status Unshared(const absl::Status& status) {
  return status.ok() ? status : WithMessage(status, status.message());
}

// About what it costs to put a thread to sleep and to wake it again.
constexpr std::chrono::nanoseconds kSpin = std::chrono::microseconds(5);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int Cores() {
  static const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return cores;
}

}  // namespace

std::atomic<int> HostThreads::count_{0};

bool HostThreads::SpinUntil(const std::atomic<bool>& flag) {
  if (flag.load(std::memory_order_acquire)) return true;
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    // A core must be left for the thread that will raise the flag.
    if (count_.load(std::memory_order_relaxed) >= Cores()) return false;
    for (int i = 0; i < 8; ++i) {
      Pause();
      if (flag.load(std::memory_order_acquire)) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

absl::Status HostEvent::Synchronize() {
  if (!HostThreads::SpinUntil(reached_)) {
    std::unique_lock<std::mutex> lock(mutex_);
    raised_.wait(lock, [this] { return reached_.load(std::memory_order_relaxed); });
  }
  return Unshared(status_);
}

// status_ is written before the store that raises the flag, with release order, and read after a load with acquire
// order (or under the mutex): readers need no lock for it. The store is under the mutex so that it cannot fall between
// a waiter's test of the flag and its going to sleep.
void HostEvent::Reach(const absl::Status& status) {
  status_ = Unshared(status);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    reached_.store(true, std::memory_order_release);
  }
  raised_.notify_all();
}

absl::StatusOr<std::unique_ptr<Stream>> HostStream::Create(std::shared_ptr<Device> device, std::string name) {
  std::unique_ptr<HostStream> stream(new HostStream(std::move(device), std::move(name)));
  try {
    stream->worker_ = std::thread([self = stream.get()] { self->Loop(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("stream \"", stream->name_, "\": cannot start its thread: ", error.what()));
  }
  return stream;
}

HostStream::~HostStream() {
  if (!worker_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    has_pending_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
  worker_.join();
}

void HostStream::Run(std::function<absl::Status()> work) {
  Check(work != nullptr, "empty work on a stream");
  Push(std::move(work));
}

void HostStream::RunAlways(std::function<absl::Status(const absl::Status& so_far)> work) {
  Check(work != nullptr, "empty work on a stream");
  Push(std::move(work));
}

void HostStream::CopyAsync(void* destination, const void* source, int64_t nbytes) {
  Push(Copy{destination, source, nbytes});
}

Event HostStream::Record() {
  auto event = std::make_shared<HostEvent>();
  Push(event);
  return Event(std::move(event));
}

void HostStream::Wait(const Event& event) {
  // An event may be reached with an error, which this stream must take over: so only the empty one is nothing to do.
  if (event.state() != nullptr) Push(event);
}

absl::Status HostStream::Synchronize() { return Record().Synchronize(); }

void HostStream::Push(Work work) {
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.push_back(std::move(work));
    has_pending_.store(true, std::memory_order_release);
    std::swap(wake, asleep_);
  }
  if (wake) wake_.notify_one();
}

void HostStream::Loop() {
  SetThreadName(name_);
  HostThreads::Running running;
  std::vector<Work> batch;
  while (TakePending(batch)) {
    for (Work& work : batch) {
      Execute(work);
      work = Copy{};  // lets go of what the work holds before anything that comes after it
    }
    batch.clear();
  }
}

bool HostStream::TakePending(std::vector<Work>& batch) {
  HostThreads::SpinUntil(has_pending_);
  std::unique_lock<std::mutex> lock(mutex_);
  while (pending_.empty()) {
    if (closing_) return false;
    HostThreads::Blocked blocked;
    asleep_ = true;
    wake_.wait(lock);
  }
  asleep_ = false;
  batch.swap(pending_);
  has_pending_.store(closing_, std::memory_order_relaxed);
  return true;
}

void HostStream::Execute(const Work& work) {
  if (const auto* run = std::get_if<std::function<absl::Status()>>(&work)) {
    if (status_.ok()) Note((*run)());
  } else if (const auto* always = std::get_if<std::function<absl::Status(const absl::Status&)>>(&work)) {
    Note((*always)(status_));
  } else if (const auto* copy = std::get_if<Copy>(&work)) {
    if (status_.ok() && copy->nbytes > 0) std::memcpy(copy->destination, copy->source, copy->nbytes);
  } else if (const auto* event = std::get_if<std::shared_ptr<HostEvent>>(&work)) {
    (*event)->Reach(status_);
  } else {
    // Waited for even after an error: what RunAlways runs next may touch memory that the other stream still uses.
    const Event& awaited = std::get<Event>(work);
    absl::Status status;
    if (awaited.Query()) {
      status = awaited.Synchronize();
    } else {
      HostThreads::Blocked blocked;
      status = awaited.Synchronize();
    }
    // The error already names the stream on which it arose.
    if (status_.ok()) status_ = std::move(status);
  }
}

void HostStream::Note(const absl::Status& status) {
  if (status_.ok() && !status.ok()) status_ = OnStream(status, name_);
}

}  // namespace fsdp
