// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/buffer.h"

#include <utility>

#include "fsdp/base/check.h"

namespace fsdp {

Buffer::Buffer(void* data, int64_t nbytes, std::function<void()> free, DeviceId device)
    : data_(static_cast<std::byte*>(data)), nbytes_(nbytes), device_(device) {
  Check(nbytes >= 0, "a buffer of negative size");
  if (free) owner_ = std::shared_ptr<void>(data, [free = std::move(free)](void*) { free(); });
}

Buffer Buffer::Slice(int64_t offset, int64_t nbytes) const {
  Check(offset >= 0 && nbytes >= 0 && nbytes <= nbytes_ && offset <= nbytes_ - nbytes, "a slice outside its buffer");
  Buffer slice = *this;
  slice.data_ += offset;
  slice.nbytes_ = nbytes;
  return slice;
}

}  // namespace fsdp
