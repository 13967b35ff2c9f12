// SPDX-License-Identifier: Apache-2.0
//
// HostMemory: the memory of one host device: an exact count of live bytes, and a cache of freed blocks, because the
// first touch of fresh pages costs ten times what a warm page does. Blocks of 64 KiB and more are kept by rounded size;
// live and kept blocks together never exceed the highest live amount by more than a quarter and 256 MiB. Thread-safe;
// live buffers hold a reference.
#ifndef FSDP_TENSOR_HOST_MEMORY_H_
#define FSDP_TENSOR_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "fsdp/tensor/buffer.h"

namespace fsdp {

class HostMemory : public std::enable_shared_from_this<HostMemory> {
 public:
  // `cache_freed` as in HostDeviceOptions.
  static std::shared_ptr<HostMemory> Create(bool cache_freed);
  // Frees the kept blocks; no buffer is left by then, since each holds a reference.
  ~HostMemory();

  // `nbytes` aligned to 64 bytes, to 4096 from 64 KiB on, to 2 MiB (one huge page) from 4 MiB on; contents unspecified.
  // The buffer of 0 bytes is not null. kResourceExhausted when the system has no memory even after all kept blocks were
  // freed. kInvalidArgument for a negative size.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes);

  // Counts memory of another owner; negative when freed.
  void Note(int64_t nbytes);

  // These three as in Device.
  int64_t allocated_bytes() const;
  int64_t peak_allocated_bytes() const;
  void ResetPeak();

  // Bytes of freed blocks that are kept. They do not count as allocated.
  int64_t kept_bytes() const;

 private:
  // A freed block that is kept.
  struct Block {
    void* data;
    size_t size;  // rounded
  };
  using Blocks = std::list<Block>;

  explicit HostMemory(bool cache_freed) : cache_freed_(cache_freed) {}

  // A kept or new block, or null; `size` is one that is kept when freed.
  void* AllocateLarge(size_t size);

  // Keeps the block, or frees it; `nbytes` as requested, `size` rounded. Any thread.
  void Free(void* data, int64_t nbytes, size_t size);
  // Gives blocks back to the system. Called without mutex_: these are system calls.
  static void FreeBlocks(const Blocks& blocks);

  // These three require mutex_.

  // A kept block of exactly `size` bytes, the one freed last, or null.
  void* TakeKept(size_t size);

  // Moves out the blocks that were kept longest, until live and kept bytes together are within the bound.
  Blocks TakeSurplus();

  void RecordLocked(int64_t nbytes);

  const bool cache_freed_;

  mutable std::mutex mutex_;
  int64_t allocated_ = 0;  // as asked for, of all sizes and owners
  int64_t peak_ = 0;       // of allocated_, since ResetPeak
  int64_t live_ = 0;       // rounded, of live blocks large enough to be kept
  int64_t highest_live_ = 0;
  int64_t kept_bytes_ = 0;
  Blocks kept_;                                             // the block freed last is at the back
  std::map<size_t, std::deque<Blocks::iterator>> by_size_;  // into kept_, in its order; never an empty deque
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_HOST_MEMORY_H_
