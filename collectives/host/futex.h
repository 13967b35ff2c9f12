// SPDX-License-Identifier: Apache-2.0
//
// Futex: Linux's sleep and wake on a 32-bit word that may lie in memory shared between processes.
#ifndef FSDP_COLLECTIVES_HOST_FUTEX_H_
#define FSDP_COLLECTIVES_HOST_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace fsdp {

// Sleeps while `word` is `expected`, at most `limit`; may return early.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, absl::Duration limit);

// Wakes all that sleep on `word`.
void FutexWakeAll(const std::atomic<uint32_t>& word);

// Tells the core that this is a spin loop.
inline void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_FUTEX_H_
