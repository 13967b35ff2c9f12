// SPDX-License-Identifier: Apache-2.0
//
// HostStream: a stream of the host device: a worker thread that takes work from a queue and runs it in order. Each
// piece of work is destroyed, with the buffers that it holds, before the next one starts, so after Synchronize nothing
// is held.
//
//   producer:  Push --> [ pending ]                    under the mutex, tens of nanoseconds
//   worker:             swap out all pending, run them one by one, spin a little, sleep
//
// A thread for each stream, and not a pool: streams wait for each other's events, and a pool whose threads all wait
// would never run the work that they wait for.
#ifndef FSDP_TENSOR_HOST_STREAM_H_
#define FSDP_TENSOR_HOST_STREAM_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// HostEvent: the host device's part of an Event: a flag that is raised once, with the stream's error so far.
// Thread-safe. It outlives its stream, which raises it at the latest while it is being destroyed, so waiting for it
// ends.
class HostEvent final : public Event::State {
 public:
  // Spins for some microseconds if a core is idle, then sleeps. Returns the stream's error up to the event.
  absl::Status Synchronize() override;
  bool Query() override { return reached_.load(std::memory_order_acquire); }

  // Raises the flag with the stream's error so far. Called once, by the worker.
  void Reach(const absl::Status& status);

 private:
  std::atomic<bool> reached_{false};
  absl::Status status_;  // written before `reached_` is raised, only read after it
  std::mutex mutex_;     // orders raising the flag against going to sleep
  std::condition_variable raised_;
};

// Threads that run or spin for host streams, in this process. Spinning for work pays only while a core would otherwise
// be idle; if ranks or streams outnumber the cores, it takes time from the thread that it waits for. A count of threads
// is enough: it is compared with the number of cores.
class HostThreads {
 public:
  // Running marks the calling thread as running until destroyed: a worker, or a thread that computes. Blocked takes the
  // mark away while the thread sleeps or waits.
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
  // Threads that run now.
  static std::atomic<int> count_;
};

// Errors of work are prefixed with the stream's name (OnStream). One producer at a time, as for every Stream.
class HostStream final : public Stream {
 public:
  // Starts the thread, named after the stream for debuggers; kResourceExhausted when the system cannot start another.
  // The stream holds `device`. Linux cuts the name of the thread to 15 bytes.
  static absl::StatusOr<std::unique_ptr<Stream>> Create(std::shared_ptr<Device> device, std::string name);

  // Runs all pending work, then ends the thread. Must not be called from work of the same stream.
  ~HostStream() override;

  // The device and the name are valid for as long as the stream.
  Device& device() const override { return *device_; }
  std::string_view name() const override { return name_; }
  // Only Synchronize blocks; `work` must not be null.
  void Run(std::function<absl::Status()> work) override;
  void RunAlways(std::function<absl::Status(const absl::Status& so_far)> work) override;
  void CopyAsync(void* destination, const void* source, int64_t nbytes) override;
  Event Record() override;
  void Wait(const Event& event) override;
  absl::Status Synchronize() override;

 private:
  // Memory of the host on both sides; not owned.
  struct Copy {
    void* destination;
    const void* source;
    int64_t nbytes;
  };
  // Run, RunAlways, CopyAsync, Record, Wait.
  using Work = std::variant<std::function<absl::Status()>, std::function<absl::Status(const absl::Status&)>, Copy,
                            std::shared_ptr<HostEvent>, Event>;

  HostStream(std::shared_ptr<Device> device, std::string name) : device_(std::move(device)), name_(std::move(name)) {}

  // Appends a piece of work and, if the worker sleeps, wakes it. Waking a sleeping worker costs a system call.
  void Push(Work work);

  // The worker thread's side; returns when the stream closes and nothing is pending. Execute runs one piece; after an
  // error it skips the piece, unless it is RunAlways, an event or a wait.
  void Loop();
  bool TakePending(std::vector<Work>& batch);  // blocks; false when the stream is closing and nothing is left
  void Execute(const Work& work);
  void Note(const absl::Status& status);  // the outcome of a piece of work

  const std::shared_ptr<Device> device_;
  const std::string name_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Work> pending_;             // guarded by mutex_
  bool asleep_ = false;                   // guarded by mutex_; the worker waits for wake_
  bool closing_ = false;                  // guarded by mutex_
  std::atomic<bool> has_pending_{false};  // !pending_.empty() or closing_, for the spinning worker

  absl::Status status_;  // the worker's only: the first error
  std::thread worker_;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_HOST_STREAM_H_
