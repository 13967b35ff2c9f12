// SPDX-License-Identifier: Apache-2.0
//
// Slots are handed out when the host issues work, long before the device runs it, so "free" is not a state but an
// event: the point of a stream after which the last user's work is done. Acquire makes the new user's stream wait for
// that event; the host never waits. First in, first out: the slot that was released first is the one whose event is
// reached first, so the new user waits least. An empty pool is an error and not a wait: the buffer would be released by
// a later call of the same host thread.
#include "fsdp/fsdp/units/slot_pool.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<SlotPool> SlotPool::Create(SlotMemory& memory, int count, int64_t nbytes, std::string purpose) {
  SlotPool pool;
  pool.purpose_ = std::move(purpose);
  pool.nbytes_ = nbytes;
  FSDP_RETURN_IF_ERROR(pool.Grow(memory, count));
  return pool;
}

absl::Status SlotPool::Grow(SlotMemory& memory, int count) {
  for (int i = 0; i < count; ++i) {
    FSDP_ASSIGN_OR_RETURN(Buffer buffer, memory.Allocate(nbytes_));
    free_.push_back({std::move(buffer), Event()});
    ++count_;
  }
  return absl::OkStatus();
}

absl::StatusOr<Buffer> SlotPool::Acquire(Stream& user, const std::string& unit) {
  if (free_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit ", unit, ": all ", count_, " slots for ", purpose_,
                     " are in use: expected fewer units at one time, as in the order that memory was planned for; give "
                     "a unit back first (Reshard, Reduce), or plan for more (limit_all_gathers off; units_at_once of "
                     "ManualUnits)"));
  }
  Slot slot = std::move(free_.front());
  free_.pop_front();
  user.Wait(slot.free);
  return std::move(slot.buffer);
}

void SlotPool::Sort() {
  std::sort(free_.begin(), free_.end(),
            [](const Slot& a, const Slot& b) { return std::less<>()(a.buffer.data(), b.buffer.data()); });
}

void SlotPool::Release(Buffer buffer, Event done) { free_.push_back({std::move(buffer), std::move(done)}); }

}  // namespace fsdp
