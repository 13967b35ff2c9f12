// SPDX-License-Identifier: Apache-2.0
//
// Every peer maps the heap once, when the group is created, and it never moves or grows: an offset that a rank
// publishes is immediately valid on all peers, without a handshake per buffer. The heap is as large as the host's
// memory, because address space is free; only the memory that Commit has backed is used.
//
// free_ holds the free ranges by offset. Returned ranges join their neighbours, so first fit over a handful of large
// buffers does not fragment.
#include "fsdp/collectives/host/shared_heap.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 << 20;

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t HostMemoryBytes() {
  struct sysinfo host = {};
  sysinfo(&host);
  return static_cast<int64_t>(host.totalram) * host.mem_unit;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedHeap>> SharedHeap::Create(std::shared_ptr<Device> device) {
  FSDP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create("fsdp-heap", RoundUp(HostMemoryBytes(), kHugePage)));
  return std::shared_ptr<SharedHeap>(new SharedHeap(std::move(memory), std::move(device)));
}

SharedHeap::SharedHeap(SharedMemory memory, std::shared_ptr<Device> device)
    : memory_(std::move(memory)), device_(std::move(device)), free_({{0, memory_.nbytes()}}) {}

absl::StatusOr<Buffer> SharedHeap::Allocate(int64_t nbytes) {
  const int64_t unit = nbytes >= kHugePage ? kHugePage : kPage;
  const int64_t size = RoundUp(std::max<int64_t>(nbytes, 1), unit);
  const std::optional<int64_t> offset = Take(size, unit);
  absl::Status status =
      offset.has_value() ? memory_.Commit(*offset, size) : absl::ResourceExhaustedError("no free range is long enough");
  if (!status.ok()) {
    // Take has reserved the range; without this it would be lost for the life of the heap.
    if (offset.has_value()) {
      Return(*offset, size);
    }
    return absl::ResourceExhaustedError(absl::StrCat("device ", device_->name(), ", shared heap of ", memory_.nbytes(),
                                                     " bytes: wanted ", nbytes, ", in use ", device_->allocated_bytes(),
                                                     ": ", status.message()));
  }
  device_->RecordAllocation(nbytes);
  return Buffer(memory_.data() + *offset, nbytes,
                [heap = shared_from_this(), offset = *offset, size, nbytes] { heap->Free(offset, size, nbytes); });
}

std::optional<int64_t> SharedHeap::OffsetOf(const void* data, int64_t nbytes) const {
  // Compared as numbers: `data` may point anywhere.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory_.data());
  const uintptr_t at = reinterpret_cast<uintptr_t>(data);
  if (at < begin || at + nbytes > begin + memory_.nbytes()) {
    return std::nullopt;
  }
  return static_cast<int64_t>(at - begin);
}

std::optional<int64_t> SharedHeap::Take(int64_t size, int64_t alignment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, bytes] = *it;
    const int64_t begin = RoundUp(offset, alignment);
    if (begin + size > offset + bytes) {
      continue;
    }
    free_.erase(it);
    if (begin > offset) {
      free_[offset] = begin - offset;
    }
    if (begin + size < offset + bytes) {
      free_[begin + size] = offset + bytes - begin - size;
    }
    return begin;
  }
  return std::nullopt;
}

void SharedHeap::Return(int64_t offset, int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto it = free_.emplace(offset, size).first;
  if (const auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it != free_.begin()) {
    if (const auto previous = std::prev(it); previous->first + previous->second == it->first) {
      previous->second += it->second;
      free_.erase(it);
    }
  }
}

void SharedHeap::Free(int64_t offset, int64_t size, int64_t nbytes) {
  memory_.Decommit(offset, size);  // before the range can be taken again
  Return(offset, size);
  device_->RecordAllocation(-nbytes);
}

}  // namespace fsdp
