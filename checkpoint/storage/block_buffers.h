// SPDX-License-Identifier: Apache-2.0
//
// BlockBuffers: memory of one block, kBlockBytes, for each thread that is at work; given back, it is used again, since
// fresh pages cost more than the I/O. Thread-safe.
#ifndef FSDP_CHECKPOINT_STORAGE_BLOCK_BUFFERS_H_
#define FSDP_CHECKPOINT_STORAGE_BLOCK_BUFFERS_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

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

#endif  // FSDP_CHECKPOINT_STORAGE_BLOCK_BUFFERS_H_
