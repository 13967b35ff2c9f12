// SPDX-License-Identifier: Apache-2.0
//
// AlignedBlock: memory as direct I/O wants it, in huge pages, of which it has fewer to find. Its pages exist only once
// they are touched. Thread-safe.
//
// Fresh pages are dear, above all on a virtual machine that has given its free memory back to its host: with fresh
// buffers a save took 1.3 times what it took with those of the one before. So blocks of the common size that are freed
// are kept, at most kKeptBytes of them in a process, for whoever asks next.
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

// The buffers of two threads, each with four writes or reads in flight and a block that it works on.
inline constexpr int64_t kKeptBytes = int64_t{44} << 20;

struct FreeAligned {
  int64_t nbytes = 0;  // of the memory
  void operator()(std::byte* memory) const;
};
using AlignedBlock = std::unique_ptr<std::byte[], FreeAligned>;

// At least `nbytes` bytes, aligned to a page, or to a huge page where there is room for one. Contents unspecified.
AlignedBlock NewAlignedBlock(int64_t nbytes);

// A pool of blocks of kBlockBytes, one for each thread that is at work. A block that was given back is lent again,
// since fresh pages cost more than the I/O. Thread-safe.
class BlockBuffers {
 public:
  // A block, given back when this goes. Must not outlive the buffers.
  class Lease {
   public:
    Lease(Lease&&) = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (bytes_ != nullptr) owner_->Give(std::move(bytes_));
    }

    // Contents unspecified; aligned as direct I/O wants it.
    std::byte* data() const { return bytes_.get(); }

   private:
    friend class BlockBuffers;
    Lease(BlockBuffers* owner, AlignedBlock bytes) : owner_(owner), bytes_(std::move(bytes)) {}

    BlockBuffers* owner_;
    AlignedBlock bytes_;
  };

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
