// SPDX-License-Identifier: Apache-2.0
//
// HostPacks: copies of small tensors from a GPU to the host, many by one copy and in one pinned block
// (tensor/packed_copies.h), since each copy and each pinned allocation costs microseconds, however small it is. A copy
// is made by the next Flush, so what it reads must stay as it is until then. One thread.
#ifndef FSDP_FSDP_STATE_HOST_PACKS_H_
#define FSDP_FSDP_STATE_HOST_PACKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/packed_copies.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class HostPacks {
 public:
  // The caller owns `stream` and destroys it before this.
  explicit HostPacks(Stream& stream) : stream_(stream), packed_(stream) {}

  // True if a copy of `nbytes` of `from` is small, and `from` is in the memory of a GPU.
  bool Takes(const Tensor& from, int64_t nbytes) const;

  // A tensor of `numel` elements in pinned memory that Flush fills with `pieces` of `from`, which do not overlap. Later
  // calls may return memory of the same block, which lives as long as one of them.
  absl::StatusOr<Tensor> Add(const Tensor& from, std::vector<IntervalCopy> pieces, int64_t numel);

  // Puts the copies on the stream.
  absl::Status Flush();

 private:
  absl::StatusOr<Buffer> Place(int64_t nbytes);

  Stream& stream_;
  PackedCopies packed_;
  Buffer block_;
  int64_t used_ = 0;  // bytes of block_
  int64_t next_block_bytes_ = int64_t{256} << 10;
  std::vector<PackedCopies::Slot> slots_;  // in block_, for the next Flush
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_HOST_PACKS_H_
