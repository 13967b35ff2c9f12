// SPDX-License-Identifier: Apache-2.0
//
// Futex: Linux's sleep and wake-up on a 32-bit word, which may be in memory shared between processes (futex(2)). A
// pthread condition variable in shared memory would have a lock that a killed rank can leave locked.
#ifndef FSDP_COLLECTIVES_HOST_FUTEX_H_
#define FSDP_COLLECTIVES_HOST_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace fsdp {

// Sleeps while `word` is `expected`, for at most `limit`. May return early: the caller checks its condition again.
// `limit` is not negative.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, absl::Duration limit);

// Wakes all threads that sleep on `word`, in all processes. A system call, also when no thread sleeps: callers keep a
// count of sleepers.
void FutexWakeAll(const std::atomic<uint32_t>& word);

// A hint to the core that this is a spin loop: it saves power and leaves the core to its other hardware thread.
inline void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_FUTEX_H_
