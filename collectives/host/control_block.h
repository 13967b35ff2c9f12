// SPDX-License-Identifier: Apache-2.0
//
// ControlBlock: the memory that the ranks of one group share: who arrived where, what each is about to do, why one gave
// up. Plain data of atomics that lies in shared memory between processes, or on the heap between threads;
// round_barrier.h is the code that uses it. All waiting is on `arrivals`, one futex word.
#ifndef FSDP_COLLECTIVES_HOST_CONTROL_BLOCK_H_
#define FSDP_COLLECTIVES_HOST_CONTROL_BLOCK_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "fsdp/collectives/group/collective.h"

namespace fsdp {

// What one rank does next, and where its peers find its data.
struct Descriptor {
  CollectiveSpec spec;
  bool direct = false;   // peers read the rank's own memory at `address`; else its staging slots
  uint64_t address = 0;  // in the fabric's terms
};

// Values go through shared memory; never renumber.
enum class Presence : uint32_t {
  kPresent = 0,
  kGaveUp = 1,    // its abort_code and abort_text are set
  kDeparted = 2,  // destroyed its group after its last collective
};

struct alignas(64) RankControl {
  // The last round that this rank arrived at, and the last that it saw complete; written by it alone.
  std::atomic<uint32_t> arrived{0};
  std::atomic<uint32_t> completed{0};
  // Whether it may be reading its peers' own memory now.
  std::atomic<uint32_t> reading{0};
  std::atomic<Presence> presence{Presence::kPresent};
  // Set before presence becomes kGaveUp, never changed after. The round is the first that the rank did not complete.
  uint32_t abort_round = 0;
  int32_t abort_code = 0;
  std::array<char, 1000> abort_text{};
  // Written before this rank arrives at round k in [k % 2]; see round_barrier.h.
  alignas(64) std::array<Descriptor, 2> descriptors{};
};

struct GroupControl {
  // Sum of all ranks' arrivals, modulo 2^32: round k is complete at k * size. The futex word.
  alignas(64) std::atomic<uint32_t> arrivals{0};
  // Ranks that are in FUTEX_WAIT or about to be: nobody is woken when there are none.
  alignas(64) std::atomic<uint32_t> sleepers{0};
  // 1 + the first rank that gave up; 0 while none did.
  std::atomic<uint32_t> aborted_by{0};
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<Presence>::is_always_lock_free);

// A view of a group's control memory; a value.
class ControlBlock {
 public:
  static int64_t BytesFor(int size) {
    return static_cast<int64_t>(sizeof(GroupControl)) + size * static_cast<int64_t>(sizeof(RankControl));
  }

  // Lays out a new block in BytesFor(size) bytes at `memory`, aligned to 64; done once, before any rank looks.
  static ControlBlock Format(void* memory, int size) {
    ControlBlock block(memory);
    new (block.group_) GroupControl();
    for (int r = 0; r < size; ++r) {
      new (block.ranks_ + r) RankControl();
    }
    return block;
  }

  // Views a block that was formatted.
  explicit ControlBlock(void* memory)
      : group_(static_cast<GroupControl*>(memory)),
        ranks_(reinterpret_cast<RankControl*>(static_cast<std::byte*>(memory) + sizeof(GroupControl))) {}

  GroupControl& group() const { return *group_; }
  RankControl& rank(int r) const { return ranks_[r]; }

 private:
  GroupControl* group_;
  RankControl* ranks_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_CONTROL_BLOCK_H_
