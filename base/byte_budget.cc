// SPDX-License-Identifier: Apache-2.0

#include "base/byte_budget.h"

#include <algorithm>

#include "base/check.h"

namespace fsdp {

ByteBudget::ByteBudget(int64_t limit_bytes) : limit_bytes_(limit_bytes) {
  Check(limit_bytes >= 0, "a byte budget with a negative limit");
}

ByteBudget::Lease ByteBudget::Acquire(int64_t nbytes) {
  Check(nbytes >= 0, "a negative number of bytes from a byte budget");
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] { return turn_ == ticket && (held_ == 0 || nbytes <= limit_bytes_ - held_); });
  ++turn_;
  held_ += nbytes;
  peak_ = std::max(peak_, held_);
  lock.unlock();
  // The next in line may fit too.
  changed_.notify_all();
  return Lease(this, nbytes);
}

void ByteBudget::Release(int64_t nbytes) {
  // Notified under the lock: as soon as it is free, the budget may be destroyed by who waited for it.
  std::lock_guard<std::mutex> lock(mutex_);
  held_ -= nbytes;
  changed_.notify_all();
}

void ByteBudget::Lease::Return() {
  if (budget_ != nullptr) std::exchange(budget_, nullptr)->Release(std::exchange(nbytes_, 0));
}

int64_t ByteBudget::held_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return held_;
}

int64_t ByteBudget::peak_held_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peak_;
}

}  // namespace fsdp
