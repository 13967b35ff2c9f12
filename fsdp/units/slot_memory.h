// SPDX-License-Identifier: Apache-2.0
//
// SlotMemory: the memory of slots and staging, which collectives write and read. In a group that registers memory with
// a library (NCCL), what is reserved together is one allocation, an arena, of which each buffer is a piece at a
// multiple of 256 bytes; elsewhere each buffer is an allocation of its own. Arenas may be windows of groups
// (symmetric_group.h). One thread; buffers may go on any thread.
#ifndef FSDP_FSDP_UNITS_SLOT_MEMORY_H_
#define FSDP_FSDP_UNITS_SLOT_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

class SlotMemory {
 public:
  // So many buffers of a size.
  struct Pieces {
    int count = 1;
    int64_t nbytes = 0;
  };

  // `group` must outlive it.
  explicit SlotMemory(ProcessGroup& group);

  // Makes room for the next calls of Allocate, which ask for these pieces in this order. Local; the errors of
  // ProcessGroup::Allocate. Call Register afterwards.
  absl::Status Reserve(const std::vector<Pieces>& pieces);

  // Memory of `nbytes`, reserved or not. An arena lives as long as one of its pieces, and as this object knows it.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes);

  // Ends what Reserve began: makes the arena a window of the groups of SetWindows, if all ranks could allocate.
  // `allocated`: of the calls since Reserve. Collective if there are such groups; else returns `allocated`.
  absl::Status Register(const absl::Status& allocated);

  // Forgets the arenas, whose pieces are about to be replaced: they are windows until the last piece goes.
  void Forget();

  // From now on the arenas are windows of exactly these groups. After an error, of none. Nothing may be on the streams.
  // The errors of SymmetricGroup::RegisterWindow. Collective; blocks.
  absl::Status SetWindows(const std::vector<std::shared_ptr<ProcessGroup>>& groups);

  // True if SetWindows with these groups, in this order, would change nothing.
  bool HasWindowsOf(const std::vector<std::shared_ptr<ProcessGroup>>& groups) const { return windows_of_ == groups; }

 private:
  struct Arena;

  ProcessGroup* group_;
  bool registers_;
  std::vector<std::shared_ptr<ProcessGroup>> windows_of_;
  std::vector<std::shared_ptr<Arena>> arenas_;  // in the same order on all ranks
  Buffer left_;                                 // of the last arena; null if nothing is
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_SLOT_MEMORY_H_
