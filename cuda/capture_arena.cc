// SPDX-License-Identifier: Apache-2.0
//
// Why reuse during a capture is sound: memory is freed here when the host drops the last reference, not when work has
// run, because captured work has not run. The next user of the block is put on the stream later, and the graph replays
// in the order of the capture on one stream (CaptureWork refuses arena memory on any other). So in every replay the
// second user comes after the first, and the first is done with the block.

#include "fsdp/cuda/capture_arena.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// A block serves requests of at least half its size: the tensors of a step have few different sizes.
constexpr int64_t kMostWaste = 2;

}  // namespace

absl::StatusOr<Buffer> CaptureArena::Allocate(int64_t nbytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t block = blocks_.size();
  // The smallest free block that is large enough, unless too much of it would be unused.
  const auto fits = free_.lower_bound(nbytes);
  if (fits != free_.end() && fits->first <= kMostWaste * nbytes) {
    block = fits->second;
    free_.erase(fits);
  } else {
    FSDP_ASSIGN_OR_RETURN(Buffer made, source_(nbytes));
    blocks_.push_back(std::move(made));
  }
  return Buffer(
      blocks_[block].data(), nbytes, [self = shared_from_this(), block] { self->Free(block); },
      blocks_[block].device());
}

void CaptureArena::Free(size_t block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.emplace(blocks_[block].nbytes(), block);
}

bool CaptureArena::Contains(const void* data) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* at = static_cast<const std::byte*>(data);
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [at](const Buffer& block) { return at >= block.data() && at < block.data() + block.nbytes(); });
}

int64_t CaptureArena::allocated_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t sum = 0;
  for (const Buffer& block : blocks_) sum += block.nbytes();
  return sum;
}

}  // namespace fsdp
