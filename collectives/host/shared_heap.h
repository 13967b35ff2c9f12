// SPDX-License-Identifier: Apache-2.0
//
// SharedHeap: the memory of one rank that its peers can read: a large sparse SharedMemory from which ranges are taken
// by first fit. Each range is committed when it is taken, and returned to the system when its buffer is destroyed. Each
// call costs system calls and time linear in the number of free ranges. Made for a few large and long-lived buffers,
// such as an FSDP unit's; it is not a general allocator. Thread-safe.
#ifndef FSDP_COLLECTIVES_HOST_SHARED_HEAP_H_
#define FSDP_COLLECTIVES_HOST_SHARED_HEAP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/statusor.h"
#include "fsdp/collectives/host/shared_memory.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  // A heap of the size of the host's memory; it takes address space only. `device` counts the allocated bytes.
  static absl::StatusOr<std::shared_ptr<SharedHeap>> Create(std::shared_ptr<Device> device);

  // A range of `nbytes` zeros, aligned to 4096 bytes; to 2 MiB if it is at least that large. The buffer keeps the heap
  // alive. kResourceExhausted names the device, the requested and the used bytes. Blocks while the system finds the
  // pages. Any thread may destroy the buffer.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes);

  // The offset of [data, data + nbytes) in the heap; nullopt if these bytes are not inside of it. O(1), without a lock.
  std::optional<int64_t> OffsetOf(const void* data, int64_t nbytes) const;

  // For the peers, which map it read-only.
  const SharedMemory& memory() const { return memory_; }

 private:
  SharedHeap(SharedMemory memory, std::shared_ptr<Device> device);

  // Take and Return change free_ only; Free also decommits.
  std::optional<int64_t> Take(int64_t size, int64_t alignment);
  void Return(int64_t offset, int64_t size);
  void Free(int64_t offset, int64_t size, int64_t nbytes);

  // Mapped for as long as the heap lives; a free range has no memory behind it.
  const SharedMemory memory_;
  const std::shared_ptr<Device> device_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes; neighbours are joined; guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_SHARED_HEAP_H_
