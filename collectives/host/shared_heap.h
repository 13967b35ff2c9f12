// SPDX-License-Identifier: Apache-2.0
//
// SharedHeap: the memory of one rank that its peers can read: a large sparse SharedMemory from which ranges are taken
// by first fit. Each range is committed when it is taken, and given back to the system when its buffer goes.
// Thread-safe. For a few large and long-lived buffers, such as an FSDP unit's; not a general allocator.
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
  // A heap as large as the host's memory. `device` counts what is taken.
  static absl::StatusOr<std::shared_ptr<SharedHeap>> Create(std::shared_ptr<Device> device);

  // A range of `nbytes`, aligned to 4096 bytes, to 2 MiB if it is as large. The buffer keeps the heap alive.
  // kResourceExhausted names the device, the wanted and the used bytes.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes);

  // Where in the heap [data, data + nbytes) is; nullopt when it is elsewhere.
  std::optional<int64_t> OffsetOf(const void* data, int64_t nbytes) const;

  const SharedMemory& memory() const { return memory_; }

 private:
  SharedHeap(SharedMemory memory, std::shared_ptr<Device> device);

  std::optional<int64_t> Take(int64_t size, int64_t alignment);
  void Return(int64_t offset, int64_t size);
  void Free(int64_t offset, int64_t size, int64_t nbytes);

  const SharedMemory memory_;
  const std::shared_ptr<Device> device_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes; neighbours are joined; guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_SHARED_HEAP_H_
