// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/packed_copies.h"

#include <utility>

#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

using Slots = absl::Span<const PackedCopies::Slot>;

int64_t EndOf(const PackedCopies::Slot& slot) { return slot.offset + slot.on_device.nbytes(); }

// The first slots that a pack takes; at least one.
Slots FirstPack(Slots slots) {
  size_t count = 1;
  while (count < slots.size() && EndOf(slots[count]) - slots[0].offset <= PackedCopies::kPackBytes) ++count;
  return slots.subspan(0, count);
}

// Between the tensors of a pack and their places in `buffer`, which has the layout of the host's memory.
std::vector<TensorCopy> CopiesOf(Slots pack, const Buffer& buffer, bool to_host) {
  std::vector<TensorCopy> copies;
  for (const PackedCopies::Slot& slot : pack) {
    const int64_t nbytes = slot.on_device.nbytes();
    Tensor packed(buffer.Slice(slot.offset - pack[0].offset, nbytes), DType::kUInt8, {nbytes});
    copies.push_back(to_host ? TensorCopy{slot.on_device, std::move(packed)}
                             : TensorCopy{std::move(packed), slot.on_device});
  }
  return copies;
}

}  // namespace

// Zeroed, so that the bytes between slots are never another program's.
absl::Status PackedCopies::Reserve() {
  if (buffer_) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(buffer_, stream_.device().Allocate(kPackBytes));
  stream_.device().ops().Zero(Tensor(buffer_, DType::kUInt8, {kPackBytes}), stream_);
  return absl::OkStatus();
}

absl::Status PackedCopies::ToHost(const std::vector<Slot>& slots, const Buffer& pinned) {
  for (Slots left = slots; !left.empty();) {
    const Slots pack = FirstPack(left);
    left.remove_prefix(pack.size());
    std::byte* const begin = pinned.data() + pack[0].offset;
    if (pack.size() == 1) {
      stream_.CopyAsync(begin, pack[0].on_device.data(), pack[0].on_device.nbytes());
      continue;
    }
    FSDP_RETURN_IF_ERROR(Reserve());
    stream_.device().ops().CopyTensors(CopiesOf(pack, buffer_, /*to_host=*/true), stream_);
    stream_.CopyAsync(begin, buffer_.data(), EndOf(pack.back()) - pack[0].offset);
  }
  return absl::OkStatus();
}

absl::Status PackedCopies::ToDevice(const Buffer& pinned, const std::vector<Slot>& slots) {
  for (Slots left = slots; !left.empty();) {
    const Slots pack = FirstPack(left);
    left.remove_prefix(pack.size());
    const std::byte* const begin = pinned.data() + pack[0].offset;
    if (pack.size() == 1) {
      stream_.CopyAsync(pack[0].on_device.data(), begin, pack[0].on_device.nbytes());
      continue;
    }
    FSDP_RETURN_IF_ERROR(Reserve());
    stream_.CopyAsync(buffer_.data(), begin, EndOf(pack.back()) - pack[0].offset);
    stream_.device().ops().CopyTensors(CopiesOf(pack, buffer_, /*to_host=*/false), stream_);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
