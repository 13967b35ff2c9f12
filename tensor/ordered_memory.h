// SPDX-License-Identifier: Apache-2.0
//
// OrderedMemory: memory in the order of a stream. A buffer that is dropped serves the next one of the same stream
// although work that uses it may not have run: the new user's work comes later on that stream. So the host can run
// ahead of the device by any amount of work without holding more memory.
#ifndef FSDP_TENSOR_ORDERED_MEMORY_H_
#define FSDP_TENSOR_ORDERED_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// Optional interface, found by dynamic_cast: a Stream that has such memory also implements this.
class OrderedMemory {
 public:
  virtual ~OrderedMemory() = default;

  // As Device::Allocate, for work that is put on this stream from now on. The buffer may be dropped once the last such
  // work was put there. Work on another stream may use it after a wait for an event that this stream recorded after the
  // call, and holds it until it has run, as it does with any buffer.
  virtual absl::StatusOr<Buffer> AllocateInOrder(int64_t nbytes) = 0;
};

// Null for a stream without such memory.
inline OrderedMemory* OrderedMemoryOf(Stream& stream) { return dynamic_cast<OrderedMemory*>(&stream); }

}  // namespace fsdp

#endif  // FSDP_TENSOR_ORDERED_MEMORY_H_
