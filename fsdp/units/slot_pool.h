// SPDX-License-Identifier: Apache-2.0
//
// SlotPool: a few buffers of one size that units take turns in, so that training allocates nothing. A slot is handed
// out when the host issues work; the work of the new user waits, on its stream, for the work of the last user. One
// thread.
#ifndef FSDP_FSDP_UNITS_SLOT_POOL_H_
#define FSDP_FSDP_UNITS_SLOT_POOL_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/units/slot_memory.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

class SlotPool {
 public:
  struct Slot {
    Buffer buffer;
    Event free;  // the last user's work is done
  };

  // No slots.
  SlotPool() = default;

  // `count` slots of `nbytes` each of `memory`, which peers reach directly. `purpose` is for messages: "unsharded
  // parameters".
  static absl::StatusOr<SlotPool> Create(SlotMemory& memory, int count, int64_t nbytes, std::string purpose);

  // Adds `count` slots, which are free immediately. Local, like Create; returns the errors of SlotMemory::Allocate.
  absl::Status Grow(SlotMemory& memory, int count);

  // The size of each slot.
  int64_t slot_bytes() const { return nbytes_; }

  // True if it has `count` slots of `nbytes`, in use or not.
  bool Suffices(int count, int64_t nbytes) const { return count_ >= count && (count == 0 || nbytes_ >= nbytes); }

  // The slot that has been free longest, for `unit`; work put on `user` afterwards may write to it.
  // kFailedPrecondition, naming the unit, when all are taken: units run in an order that needs more slots at the same
  // time than planned.
  absl::StatusOr<Buffer> Acquire(Stream& user, const std::string& unit);

  // Puts the slots that are free into the order of their addresses, so that all ranks hand out the same ones again,
  // however the pass before has ended. Between passes.
  void Sort();

  // Gives a buffer of Acquire back; it is free once `done` is reached. Does not block. The caller keeps no reference.
  void Release(Buffer buffer, Event done);

 private:
  std::string purpose_;
  int64_t nbytes_ = 0;  // of each
  int count_ = 0;
  std::deque<Slot> free_;  // longest free first
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_SLOT_POOL_H_
