// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/host_event.h"

#include <chrono>
#include <thread>

#include "absl/strings/cord.h"

namespace fsdp {
namespace {

// A copy that shares no reference count. A distribution's Abseil is not built for the race detector, which then reports
// every error whose last reference goes on another thread than one that copied it.
absl::Status Unshared(const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status copy(status.code(), status.message());
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { copy.SetPayload(url, payload); });
  return copy;
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
    // One core is left to whoever will raise the flag.
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

void HostEvent::Reach(const absl::Status& status) {
  status_ = Unshared(status);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    reached_.store(true, std::memory_order_release);
  }
  raised_.notify_all();
}

}  // namespace fsdp
