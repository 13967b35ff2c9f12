// SPDX-License-Identifier: Apache-2.0
//
// Why a cache: a training step frees and allocates the same sizes again and again, and the C library returns large
// blocks to the system, whose fresh pages fault one by one. Why a bound: blocks of sizes that are never requested again
// must not pile up.
//
//   Allocate   a kept block of exactly the rounded size, the warmest first; else a new one; if the system has no
//   memory,
//              free all kept blocks and try once more
//   Free       keep the block; then free the oldest kept ones until live and kept together are within 1.25 times the
//              largest amount that was ever live, and 256 MiB
//   count      requested bytes, not rounded ones: fsdp/'s memory plan is compared with the count, byte for byte
//
// kept_ is the list from oldest to newest; by_size_ has, for each size, the places of its blocks in that list, in the
// same order. So taking the newest of a size and dropping the oldest of all are both O(log sizes).

#include "fsdp/tensor/host_memory.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"

namespace fsdp {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// Smaller blocks come from the C library's own caches.
constexpr size_t kKeptFrom = size_t{64} << 10;
constexpr size_t kHugeFrom = 2 * kHugePage;
// No address space holds more, and sizes below it can be rounded without overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 46;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t RoundedSize(int64_t nbytes) {
  const size_t n = std::max<size_t>(nbytes, 1);
  return RoundUp(n, n < kKeptFrom ? kAlignment : kPage);
}

// `size` bytes of fresh memory, or null.
void* NewBlock(size_t size) {
  if (size < kHugeFrom) return std::aligned_alloc(size < kKeptFrom ? kAlignment : kPage, size);
  const size_t rounded = RoundUp(size, kHugePage);
  void* data = std::aligned_alloc(kHugePage, rounded);
  // A huge page replaces 512 page faults by one. This is only advice: the memory is valid without it.
  if (data != nullptr) madvise(data, rounded, MADV_HUGEPAGE);
  return data;
}

}  // namespace

std::shared_ptr<HostMemory> HostMemory::Create(bool cache_freed) {
  return std::shared_ptr<HostMemory>(new HostMemory(cache_freed));
}

HostMemory::~HostMemory() { FreeBlocks(kept_); }

void HostMemory::FreeBlocks(const Blocks& blocks) {
  for (const Block& block : blocks) std::free(block.data);
}

absl::StatusOr<Buffer> HostMemory::Allocate(int64_t nbytes) {
  if (nbytes < 0) return absl::InvalidArgumentError(absl::StrCat("cpu: cannot allocate ", nbytes, " bytes"));
  void* data = nullptr;
  const size_t size = nbytes <= kMaxBytes ? RoundedSize(nbytes) : 0;
  if (size >= kKeptFrom) {
    data = AllocateLarge(size);
  } else if (size != 0) {
    data = NewBlock(size);
  }
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cpu: cannot allocate ", nbytes, " bytes; ", allocated_bytes(), " bytes are in use"));
  }
  Note(nbytes);
  // Only the requested bytes, so that a write into the rounding is found as well.
  ASAN_POISON_MEMORY_REGION(data, size);
  ASAN_UNPOISON_MEMORY_REGION(data, nbytes);
  return Buffer(data, nbytes, [self = shared_from_this(), data, nbytes, size] { self->Free(data, nbytes, size); });
}

void* HostMemory::AllocateLarge(size_t size) {
  void* data = nullptr;
  Blocks surplus;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    live_ += static_cast<int64_t>(size);
    highest_live_ = std::max(highest_live_, live_);
    data = TakeKept(size);
    surplus = TakeSurplus();
  }
  // System calls happen outside the lock.
  FreeBlocks(surplus);
  if (data != nullptr) return data;
  data = NewBlock(size);
  if (data != nullptr) return data;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    surplus = std::exchange(kept_, {});
    by_size_.clear();
    kept_bytes_ = 0;
  }
  FreeBlocks(surplus);
  data = NewBlock(size);
  if (data != nullptr) return data;
  std::lock_guard<std::mutex> lock(mutex_);
  live_ -= static_cast<int64_t>(size);
  return nullptr;
}

void HostMemory::Free(void* data, int64_t nbytes, size_t size) {
  // A use after this is found by the address sanitizer, although the block may be kept.
  ASAN_POISON_MEMORY_REGION(data, size);
  Blocks surplus;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    RecordLocked(-nbytes);
    if (size >= kKeptFrom) {
      live_ -= static_cast<int64_t>(size);
      if (cache_freed_) {
        by_size_[size].push_back(kept_.insert(kept_.end(), Block{data, size}));
        kept_bytes_ += static_cast<int64_t>(size);
        surplus = TakeSurplus();
        data = nullptr;
      }
    }
  }
  FreeBlocks(surplus);
  std::free(data);
}

void* HostMemory::TakeKept(size_t size) {
  const auto it = by_size_.find(size);
  if (it == by_size_.end()) return nullptr;
  const Blocks::iterator block = it->second.back();
  it->second.pop_back();
  if (it->second.empty()) by_size_.erase(it);
  void* data = block->data;
  kept_bytes_ -= static_cast<int64_t>(size);
  kept_.erase(block);
  return data;
}

HostMemory::Blocks HostMemory::TakeSurplus() {
  // Room for sizes that differ from step to step, beyond the largest amount that was ever live.
  const int64_t limit = highest_live_ + highest_live_ / 4 + (int64_t{256} << 20) - live_;
  Blocks surplus;
  while (kept_bytes_ > limit) {
    const auto it = by_size_.find(kept_.front().size);
    Check(it != by_size_.end() && it->second.front() == kept_.begin(), "the kept blocks and their index differ");
    it->second.pop_front();
    if (it->second.empty()) by_size_.erase(it);
    kept_bytes_ -= static_cast<int64_t>(kept_.front().size);
    surplus.splice(surplus.end(), kept_, kept_.begin());
  }
  return surplus;
}

void HostMemory::RecordLocked(int64_t nbytes) {
  allocated_ += nbytes;
  peak_ = std::max(peak_, allocated_);
}

void HostMemory::Note(int64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  RecordLocked(nbytes);
}

int64_t HostMemory::allocated_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return allocated_;
}

int64_t HostMemory::peak_allocated_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peak_;
}

void HostMemory::ResetPeak() {
  std::lock_guard<std::mutex> lock(mutex_);
  peak_ = allocated_;
}

int64_t HostMemory::kept_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return kept_bytes_;
}

}  // namespace fsdp
