// SPDX-License-Identifier: Apache-2.0
//
// TicketLine: runs the work of several threads one at a time, in the order in which their tickets were taken. A
// collective takes its ticket when it is issued and is served when its stream reaches it, so a group's collectives run
// in the order of issue although they are on several streams. Thread-safe.
#ifndef FSDP_COLLECTIVES_HOST_TICKET_LINE_H_
#define FSDP_COLLECTIVES_HOST_TICKET_LINE_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace fsdp {

// Waiting threads sleep. Waking them costs O(waiting threads) per ticket: a group has a handful of streams.
class TicketLine {
 public:
  // Returns 1, 2, 3, ... Each ticket must be served, or all later ones wait for ever. Never waits for work that is
  // being served.
  uint64_t Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ++last_;
  }

  // Blocks until all lower tickets have been served, calls `work` without the lock, and returns its result. `work` must
  // return a value, must not throw, and may take tickets but not wait for one.
  template <typename Work>
  auto Serve(uint64_t ticket, Work work) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      turn_came_.wait(lock, [&] { return turn_ == ticket; });
    }
    // Without the lock: `work` may take minutes, and Take must not wait for it.
    auto result = work();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      // Only the thread that is served gets here, so the turn moves by one ticket at a time.
      ++turn_;
    }
    turn_came_.notify_all();
    return result;
  }

 private:
  std::mutex mutex_;
  // Notified at each turn; every waiting thread checks whether the turn is its own.
  std::condition_variable turn_came_;
  uint64_t last_ = 0;  // the last ticket that was taken; guarded by mutex_
  uint64_t turn_ = 1;  // the ticket that is served next, or now; guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_TICKET_LINE_H_
