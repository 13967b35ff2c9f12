// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/aligned_block.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <vector>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 4096;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// The size of the buffer for reading or writing a block of a checkpoint: 4 MiB, and the two pages that a read of whole
// pages adds. Sizes just below it are rounded up to it, so that any kept block serves any of these requests.
constexpr int64_t kCommonBytes = (int64_t{4} << 20) + 2 * kAlignment;

int64_t RoundUp(int64_t nbytes, int64_t unit) { return (nbytes + unit - 1) / unit * unit; }

int64_t SizeOf(int64_t nbytes) {
  const int64_t size = RoundUp(nbytes, kAlignment);
  return size <= kCommonBytes && size >= kCommonBytes - 2 * kAlignment ? kCommonBytes : size;
}

// Freed blocks of kCommonBytes, kept for reuse.
class KeptBlocks {
 public:
  // Null if no block is kept.
  std::byte* Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (blocks_.empty()) return nullptr;
    std::byte* const block = blocks_.back();
    blocks_.pop_back();
    return block;
  }

  // Takes ownership of the block and returns true, or returns false.
  bool Keep(std::byte* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<int64_t>(blocks_.size() + 1) * kCommonBytes > kKeptBytes) return false;
    blocks_.push_back(block);
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<std::byte*> blocks_;  // guarded by mutex_; the last was used most recently
};

// The pool of the process. It is never destroyed, since static destructors of other files may still free blocks.
KeptBlocks& Kept() {
  static auto* const kept = new KeptBlocks;
  return *kept;
}

}  // namespace

void FreeAligned::operator()(std::byte* memory) const {
  if (nbytes != kCommonBytes || !Kept().Keep(memory)) std::free(memory);
}

AlignedBlock NewAlignedBlock(int64_t nbytes) {
  const int64_t size = SizeOf(nbytes);
  if (size == kCommonBytes) {
    if (std::byte* const kept = Kept().Take()) return AlignedBlock(kept, FreeAligned{size});
  }
  const bool is_huge = size >= kHugePageBytes;
  // Not aligned_alloc, which requires a size that is a multiple of the alignment.
  void* memory = nullptr;
  Check(posix_memalign(&memory, is_huge ? kHugePageBytes : kAlignment, size) == 0, "out of memory for a block");
  // Fails on a system without huge pages; the block works without them, only slower.
  if (is_huge) (void)madvise(memory, size / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  return AlignedBlock(static_cast<std::byte*>(memory), FreeAligned{size});
}

}  // namespace fsdp
