// SPDX-License-Identifier: Apache-2.0
//
// PackedCopies: copies many small tensors between a GPU and pinned host memory in few copies. Each copy costs
// microseconds, however small it is, so a kernel collects the tensors of a pack in a buffer on the device, and one copy
// moves the buffer; to the device in reverse.
//
//   device    a   b   c   --kernel-->   buffer  |a|b|c|
//                                                  ^
//   host                                pinned  |a|b|c|    one copy
//
// Used by one thread.
#ifndef FSDP_TENSOR_PACKED_COPIES_H_
#define FSDP_TENSOR_PACKED_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class PackedCopies {
 public:
  // A larger tensor is copied as fast by itself.
  static constexpr int64_t kSmallBytes = int64_t{64} << 10;
  static bool IsSmall(int64_t nbytes) { return nbytes > 0 && nbytes <= kSmallBytes; }

  // The most bytes of one copy, and the device memory that is kept for it.
  static constexpr int64_t kPackBytes = int64_t{4} << 20;

  // A small tensor on the device, and the place of its bytes in the host's memory.
  struct Slot {
    Tensor on_device;
    int64_t offset = 0;
  };

  // All copies are put on `stream`, which the caller owns and destroys before this.
  explicit PackedCopies(Stream& stream) : stream_(stream) {}

  // Put the copies on the stream and return. `slots` are in the order of their offsets and do not overlap; their memory
  // and `pinned` must live until the copies have run. ToHost overwrites the bytes between two slots of a pack with
  // unspecified values. Errors of Device::Allocate, at the first call.
  absl::Status ToHost(const std::vector<Slot>& slots, const Buffer& pinned);
  absl::Status ToDevice(const Buffer& pinned, const std::vector<Slot>& slots);

 private:
  absl::Status Reserve();

  Stream& stream_;
  Buffer buffer_;  // kPackBytes on the device; each pack uses it after the one before, in stream order
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_PACKED_COPIES_H_
