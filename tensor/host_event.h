// SPDX-License-Identifier: Apache-2.0
//
// HostEvent: what the host device keeps behind an Event: a flag that is raised once, with the stream's error so far.
// Thread-safe. It outlives its stream, which raises it at the latest while it is being destroyed, so waiting for it
// ends.
#ifndef FSDP_TENSOR_HOST_EVENT_H_
#define FSDP_TENSOR_HOST_EVENT_H_

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "absl/status/status.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

class HostEvent final : public Event::State {
 public:
  absl::Status Synchronize() override;
  bool Query() override { return reached_.load(std::memory_order_acquire); }

  // Raises the flag. Called once.
  void Reach(const absl::Status& status);

 private:
  std::atomic<bool> reached_{false};
  absl::Status status_;  // written before `reached_` is raised, only read after it
  std::mutex mutex_;     // orders raising the flag against going to sleep
  std::condition_variable raised_;
};

// Threads that run or spin for host streams, in this process. Spinning for work pays only while a core would be idle
// without it; where ranks or streams outnumber the cores it takes time from the thread that it waits for.
class HostThreads {
 public:
  // Marks the calling thread as running until destroyed, or as blocked.
  class Running {
   public:
    Running() { count_.fetch_add(1, std::memory_order_relaxed); }
    ~Running() { count_.fetch_sub(1, std::memory_order_relaxed); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
  };
  class Blocked {
   public:
    Blocked() { count_.fetch_sub(1, std::memory_order_relaxed); }
    ~Blocked() { count_.fetch_add(1, std::memory_order_relaxed); }
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;
  };

  // Spins for a few microseconds, if there is an idle core, until `flag` is raised; false when it was not. The caller
  // sleeps then.
  static bool SpinUntil(const std::atomic<bool>& flag);

 private:
  static std::atomic<int> count_;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_HOST_EVENT_H_
