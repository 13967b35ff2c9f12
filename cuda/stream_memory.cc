// SPDX-License-Identifier: Apache-2.0
//
// Why no event is needed: the host drops a buffer after it has put the last work that uses it on a stream.
//
//   on this stream     the free is put on the stream after that work, and the next user of the memory follows it
//   on another stream  that stream holds the buffer until an event after that work is reached (CudaStream::Seal): the
//                      free comes when the work is done
#include "fsdp/cuda/stream_memory.h"

#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<Buffer> StreamMemory::Allocate(int64_t nbytes) {
  if (memory_->InArena()) return memory_->Allocate(nbytes);
  FSDP_ASSIGN_OR_RETURN(void* const data, memory_->AllocateOn(stream_, nbytes));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    live_.emplace(static_cast<const std::byte*>(data), nbytes);
  }
  return Buffer(
      data, nbytes, [self = shared_from_this(), data, nbytes] { self->Free(data, nbytes); }, memory_->device_id());
}

bool StreamMemory::Contains(const void* data) const {
  const auto* at = static_cast<const std::byte*>(data);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto after = live_.upper_bound(at);
  if (after == live_.begin()) return false;
  --after;
  return at < after->first + after->second;
}

// Holds the lock until the memory is freed, so that no capture begins in between.
void StreamMemory::Free(void* data, int64_t nbytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  live_.erase(static_cast<const std::byte*>(data));
  memory_->FreeOn(in_order_ ? stream_ : nullptr, data, nbytes);
}

void StreamMemory::SetInOrder(bool in_order) {
  const std::lock_guard<std::mutex> lock(mutex_);
  in_order_ = in_order;
}

}  // namespace fsdp
