// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/host_packs.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {
namespace {

// As AsyncSaver's: direct I/O takes tensors at multiples of it without another copy.
constexpr int64_t kAlignment = 512;

}  // namespace

bool HostPacks::Takes(const Tensor& from, int64_t nbytes) const {
  const Device& device = stream_.device();
  return device.type() != DeviceType::kCpu && from.device() == device.id() && PackedCopies::IsSmall(nbytes);
}

// Blocks become larger, so that a few small tensors do not pin as much as many need.
absl::StatusOr<Buffer> HostPacks::Place(int64_t nbytes) {
  if (!block_ || used_ + nbytes > block_.nbytes()) {
    FSDP_RETURN_IF_ERROR(Flush());
    FSDP_ASSIGN_OR_RETURN(block_, stream_.device().AllocatePinned(next_block_bytes_));
    used_ = 0;
    next_block_bytes_ = std::min(2 * next_block_bytes_, PackedCopies::kPackBytes);
  }
  return block_.Slice(used_, nbytes);
}

absl::StatusOr<Tensor> HostPacks::Add(const Tensor& from, std::vector<IntervalCopy> pieces, int64_t numel) {
  const int64_t itemsize = SizeOf(from.dtype()), nbytes = numel * itemsize;
  FSDP_ASSIGN_OR_RETURN(Buffer place, Place(nbytes));
  std::sort(pieces.begin(), pieces.end(), [](const IntervalCopy& a, const IntervalCopy& b) { return a.to < b.to; });
  for (const IntervalCopy& piece : pieces) {
    slots_.push_back({from.Slice({piece.from, piece.from + piece.numel}), used_ + piece.to * itemsize});
  }
  used_ += (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  return Tensor(std::move(place), from.dtype(), {numel});
}

absl::Status HostPacks::Flush() {
  if (slots_.empty()) return absl::OkStatus();
  const std::vector<PackedCopies::Slot> slots = std::exchange(slots_, {});
  FSDP_RETURN_IF_ERROR(packed_.ToHost(slots, block_));
  stream_.Run([slots, block = block_] { return absl::OkStatus(); });  // holds both until the copies have run
  return absl::OkStatus();
}

}  // namespace fsdp
