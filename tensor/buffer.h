// SPDX-License-Identifier: Apache-2.0
//
// Buffer: a counted reference to a run of bytes on some device. Copies share the bytes; the last copy frees them. Work
// that was put on a stream holds copies of the buffers that it uses, so dropping a buffer while it is in use is safe.
// Copies may be made and dropped on any thread; the bytes themselves are not synchronised.
#ifndef FSDP_TENSOR_BUFFER_H_
#define FSDP_TENSOR_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "fsdp/tensor/device_id.h"

namespace fsdp {

class Buffer {
 public:
  // No bytes.
  Buffer() = default;

  // Refers to `data`, memory of `device`; `free`, if any, is called once when the last copy goes, from any thread.
  // `nbytes` must not be negative. Pinned host memory is the host's.
  Buffer(void* data, int64_t nbytes, std::function<void()> free, DeviceId device = {});

  // Refers to memory that the caller keeps alive.
  static Buffer Unowned(void* data, int64_t nbytes, DeviceId device = {}) {
    return Buffer(data, nbytes, nullptr, device);
  }

  // `nbytes` bytes from `offset` on, sharing ownership. Precondition: inside this buffer. O(1); CHECK-fails otherwise.
  // The whole memory stays alive as long as the slice.
  Buffer Slice(int64_t offset, int64_t nbytes) const;

  // The address on the buffer's device: only work on that device, or the host for host memory, may use it.
  std::byte* data() const { return data_; }
  int64_t nbytes() const { return nbytes_; }
  // The device of the memory; the host for the buffer of no bytes.
  const DeviceId& device() const { return device_; }
  // False for the buffer of no bytes. A device's buffer of 0 bytes is not null.
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  int64_t nbytes_ = 0;
  DeviceId device_;
  std::shared_ptr<void> owner_;  // null for unowned memory
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_BUFFER_H_
