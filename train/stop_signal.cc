// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/stop_signal.h"

#include <atomic>
#include <csignal>

namespace fsdp {
namespace {

// A signal handler can reach nothing but a global, and a lock-free atomic is the only kind that it may write.
std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void RequestStop(int /*signal*/) { stop_requested.store(true); }

}  // namespace

void CatchStopSignals() {
  struct sigaction action = {};
  action.sa_handler = RequestStop;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
}

bool StopRequested() { return stop_requested.load(); }

}  // namespace fsdp
