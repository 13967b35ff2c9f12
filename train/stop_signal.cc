// SPDX-License-Identifier: Apache-2.0
//
// A handler can reach only globals, may write only lock-free atomics, and may call only functions that signal-safety(7)
// lists: alarm, clock_gettime, raise, sigaction.
//
// alarm may be called too late: the handler finds a step in progress, the step ends and stops the alarm, and then the
// handler starts it. So the alarm's handler checks again whether a step is in progress.
#include "fsdp/train/stop_signal.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

#include "absl/time/time.h"
#include "fsdp/base/steady_clock.h"

namespace fsdp {
namespace {

std::atomic<bool> stop_requested = false;
std::atomic<int64_t> terminated_at_ns = 0;  // time of the first SIGTERM; 0: none so far
std::atomic<int> steps_under_way = 0;       // more than 1 if ranks are threads
std::atomic<uint32_t> grace_seconds = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

constexpr int64_t kSameRequestNs = 1'000'000'000;

std::mutex training_mutex;
int training = 0;  // GracefulStops that exist; guarded by training_mutex

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  // Interrupted reads and writes of the training continue by themselves.
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

int64_t NowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// Ends the process by `signal` when the handler that calls this returns.
void End(int signal) {
  Handle(signal, SIG_DFL);
  raise(signal);
}

void RequestStop(int /*signal*/) { stop_requested.store(true); }

void RequestStopWithinGrace(int signal) {
  // The interrupted code may be about to read errno.
  const int error = errno;
  const int64_t now = NowNs();
  int64_t first = 0;
  // The first signal stores its time; `first` is then 0, and otherwise the time of an earlier one.
  if (!terminated_at_ns.compare_exchange_strong(first, now) && now - first >= kSameRequestNs) {
    End(signal);
  }
  stop_requested.store(true);
  if (first == 0 && steps_under_way.load() > 0) {
    alarm(grace_seconds.load());
  }
  errno = error;
}

void EndStuckStep(int /*signal*/) {
  if (terminated_at_ns.load() != 0 && steps_under_way.load() > 0) {
    Handle(SIGTERM, SIG_DFL);
    raise(SIGTERM);
  }
}

uint32_t WholeSeconds(absl::Duration duration) {
  return static_cast<uint32_t>(absl::ToInt64Seconds(absl::Ceil(duration, absl::Seconds(1))));
}

}  // namespace

void ObeyStopSignals() {
  sigset_t ours;
  sigemptyset(&ours);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    Handle(signal, signal == SIGUSR1 ? RequestStop : SIG_DFL);
    sigaddset(&ours, signal);
  }
  pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
}

bool StopRequested() { return stop_requested.load(); }

GracefulStop::GracefulStop(absl::Duration grace) {
  const std::lock_guard<std::mutex> lock(training_mutex);
  if (training++ > 0) return;
  grace_seconds.store(WholeSeconds(grace));
  // SIGALRM first: the handler of SIGTERM may start the alarm immediately.
  Handle(SIGALRM, EndStuckStep);
  Handle(SIGTERM, RequestStopWithinGrace);
}

GracefulStop::~GracefulStop() {
  const std::lock_guard<std::mutex> lock(training_mutex);
  if (--training > 0) return;
  // SIGTERM first, so that no alarm starts after it was stopped.
  Handle(SIGTERM, SIG_DFL);
  alarm(0);
  Handle(SIGALRM, SIG_DFL);
}

// A request that came between two steps is timed from here.
StepUnderWay::StepUnderWay() : began_(SteadyNow()) {
  if (steps_under_way.fetch_add(1) == 0 && terminated_at_ns.load() != 0) {
    alarm(grace_seconds.load());
  }
}

StepUnderWay::~StepUnderWay() {
  if (steps_under_way.fetch_sub(1) > 1) return;
  alarm(0);
  // A step that was slow without any fault must not be taken for a stuck one.
  const uint32_t of_this_step = WholeSeconds(3 * (SteadyNow() - began_));
  grace_seconds.store(std::max(grace_seconds.load(), of_this_step));
}

}  // namespace fsdp
