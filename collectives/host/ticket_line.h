// SPDX-License-Identifier: Apache-2.0
//
// TicketLine: runs work of several threads in the order in which one thread handed out the tickets. A collective takes
// its ticket when it is issued and its turn when its stream gets there, so a group's collectives run in the order of
// issue, on whichever streams. Thread-safe.
#ifndef FSDP_COLLECTIVES_HOST_TICKET_LINE_H_
#define FSDP_COLLECTIVES_HOST_TICKET_LINE_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace fsdp {

class TicketLine {
 public:
  // 1, 2, 3, ...; each must be served.
  uint64_t Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ++last_;
  }

  // Blocks until all lower tickets were served, calls `work`, and serves the next.
  template <typename Work>
  auto Serve(uint64_t ticket, Work work) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      turn_came_.wait(lock, [&] { return turn_ == ticket; });
    }
    auto result = work();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++turn_;
    }
    turn_came_.notify_all();
    return result;
  }

 private:
  std::mutex mutex_;
  std::condition_variable turn_came_;
  uint64_t last_ = 0;  // guarded by mutex_
  uint64_t turn_ = 1;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_TICKET_LINE_H_
