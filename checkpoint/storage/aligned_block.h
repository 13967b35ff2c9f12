// SPDX-License-Identifier: Apache-2.0
//
// AlignedBlock: memory for direct I/O, aligned, in huge pages if the system has them, so that the kernel pins fewer
// pages for a transfer. A page of the block exists only once it is touched. Thread-safe.
//
// Fresh pages are expensive, especially on a virtual machine that has returned its free memory to its host: a save with
// fresh buffers took 1.3 times as long as one with the buffers of the save before. So the process keeps up to
// kKeptBytes of freed blocks of the common size, and NewAlignedBlock returns one of those first.
#ifndef FSDP_CHECKPOINT_STORAGE_ALIGNED_BLOCK_H_
#define FSDP_CHECKPOINT_STORAGE_ALIGNED_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/storage/byte_range.h"

namespace fsdp {

// Enough for two threads, each with four transfers in flight and a fifth block to work on.
inline constexpr int64_t kKeptBytes = int64_t{44} << 20;

struct FreeAligned {
  int64_t nbytes = 0;  // of the memory
  void operator()(std::byte* memory) const;
};
using AlignedBlock = std::unique_ptr<std::byte[], FreeAligned>;

// At least `nbytes` bytes, aligned to a page, or to a huge page when the block is as large as one. The contents are
// unspecified. Dies when the process is out of memory.
AlignedBlock NewAlignedBlock(int64_t nbytes);

// A pool of blocks of kBlockBytes, one for each active thread. A returned block is lent again, since fresh pages cost
// more than the I/O. Thread-safe.
class BlockBuffers {
 public:
  // A block; the destructor returns it to the pool. Must not outlive the BlockBuffers.
  class Lease {
   public:
    Lease(Lease&&) = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (bytes_ != nullptr) owner_->Give(std::move(bytes_));
    }

    // kBlockBytes bytes, aligned for direct I/O; the contents are unspecified. Null after a move.
    std::byte* data() const { return bytes_.get(); }

   private:
    friend class BlockBuffers;
    Lease(BlockBuffers* owner, AlignedBlock bytes) : owner_(owner), bytes_(std::move(bytes)) {}

    BlockBuffers* owner_;
    AlignedBlock bytes_;
  };

  // Allocates a block when none is free; never blocks.
  Lease Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return Lease(this, NewAlignedBlock(kBlockBytes));
    AlignedBlock bytes = std::move(free_.back());
    free_.pop_back();
    return Lease(this, std::move(bytes));
  }

 private:
  void Give(AlignedBlock bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(bytes));
  }

  std::mutex mutex_;
  std::vector<AlignedBlock> free_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_ALIGNED_BLOCK_H_
