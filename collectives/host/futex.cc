// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/host/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace fsdp {
namespace {

// The kernel takes the address of a plain uint32_t. A lock-free atomic of 4 bytes has the same representation
// (control_block.h asserts that it is lock-free). Not FUTEX_PRIVATE_FLAG: the waiters may be other processes.
const uint32_t* Word(const std::atomic<uint32_t>& word) { return reinterpret_cast<const uint32_t*>(&word); }

}  // namespace

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, absl::Duration limit) {
  const timespec ts = absl::ToTimespec(limit);
  syscall(SYS_futex, Word(word), FUTEX_WAIT, expected, &ts, nullptr, 0);
}

void FutexWakeAll(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, Word(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fsdp
