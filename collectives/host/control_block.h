// SPDX-License-Identifier: Apache-2.0
//
// ControlBlock: the memory that all ranks of one group share: the progress of each rank, its next operation, and its
// reason for giving up. Plain data and atomics, in shared memory between processes or on the heap between threads;
// round_barrier.h is the code that uses it. All waiting is on `arrivals`, one futex word.
//
//   | GroupControl: arrivals, sleepers, aborted_by | RankControl of rank 0 | of rank 1 | ... |
//
// Each rank writes only its own RankControl, so a rank that is killed at any instruction leaves no lock behind and no
// half-written value on which others rely. Cache lines are not shared between ranks (alignas 64).
#ifndef FSDP_COLLECTIVES_HOST_CONTROL_BLOCK_H_
#define FSDP_COLLECTIVES_HOST_CONTROL_BLOCK_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "fsdp/collectives/group/collective.h"

namespace fsdp {

// A rank's operation in the next round, and the location of its data for the peers.
struct Descriptor {
  CollectiveSpec spec;
  bool direct = false;   // true: peers read the rank's own memory at `address`; false: they read its staging slots
  uint64_t address = 0;  // as returned by Fabric::Publish
};

// Values go through shared memory; never renumber.
enum class Presence : uint32_t {
  kPresent = 0,
  kGaveUp = 1,    // its abort_code and abort_text are set
  kDeparted = 2,  // it has destroyed its group without an error
};

struct alignas(64) RankControl {
  // The last round that this rank arrived at, and the last that it saw complete. Written by this rank only.
  std::atomic<uint32_t> arrived{0};
  std::atomic<uint32_t> completed{0};
  // 1 while this rank may be reading its peers' own memory.
  std::atomic<uint32_t> reading{0};
  std::atomic<Presence> presence{Presence::kPresent};
  // Set before presence becomes kGaveUp, and not changed afterwards. abort_round is the first round that the rank did
  // not complete; abort_text is cut at the end of the array.
  uint32_t abort_round = 0;
  int32_t abort_code = 0;
  std::array<char, 1000> abort_text{};
  // descriptors[k % 2] is written before this rank arrives at round k; see round_barrier.h.
  alignas(64) std::array<Descriptor, 2> descriptors{};
};

struct GroupControl {
  // Sum of all ranks' arrivals, modulo 2^32: round k is complete at k * size. The futex word.
  alignas(64) std::atomic<uint32_t> arrivals{0};
  // The number of ranks in FUTEX_WAIT or about to be. While it is 0, completing a round needs no system call.
  alignas(64) std::atomic<uint32_t> sleepers{0};
  // 1 + the first rank that gave up; 0 while none has.
  std::atomic<uint32_t> aborted_by{0};
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<Presence>::is_always_lock_free);

// A view of a group's control memory; a value.
class ControlBlock {
 public:
  static int64_t BytesFor(int size) {
    return static_cast<int64_t>(sizeof(GroupControl)) + size * static_cast<int64_t>(sizeof(RankControl));
  }

  // Constructs a new block in BytesFor(size) bytes at `memory`, aligned to 64. Called once, by one rank, before any
  // other rank uses the memory.
  static ControlBlock Format(void* memory, int size) {
    ControlBlock block(memory);
    new (block.group_) GroupControl();
    for (int r = 0; r < size; ++r) {
      new (block.ranks_ + r) RankControl();
    }
    return block;
  }

  // A view of a block that was formatted, by this process or another.
  explicit ControlBlock(void* memory)
      : group_(static_cast<GroupControl*>(memory)),
        ranks_(reinterpret_cast<RankControl*>(static_cast<std::byte*>(memory) + sizeof(GroupControl))) {}

  // References stay valid as long as the memory is mapped.
  GroupControl& group() const { return *group_; }
  RankControl& rank(int r) const { return ranks_[r]; }

 private:
  GroupControl* group_;
  RankControl* ranks_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_CONTROL_BLOCK_H_
