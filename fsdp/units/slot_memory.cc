// SPDX-License-Identifier: Apache-2.0
//
// Windows are registered by all ranks together, so what is registered must follow from calls that all ranks make alike,
// and never from the moment at which the last piece of an arena goes, which may be another on each rank. So this object
// holds its arenas, until Forget, instead of watching their lives.
#include "fsdp/fsdp/units/slot_memory.h"

#include <algorithm>
#include <map>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/symmetric_group.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 256;  // of cudaMalloc, which kernels and copies are fastest with

int64_t Aligned(int64_t nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

// The windows end before the memory goes.
struct SlotMemory::Arena {
  Buffer memory;
  std::map<const ProcessGroup*, std::unique_ptr<SymmetricWindow>> windows;
};

SlotMemory::SlotMemory(ProcessGroup& group) : group_(&group) {
  const auto* const symmetric = dynamic_cast<const SymmetricGroup*>(&group);
  registers_ = symmetric != nullptr && symmetric->RegistersMemory();
}

absl::Status SlotMemory::Reserve(const std::vector<Pieces>& pieces) {
  left_ = Buffer();
  int64_t nbytes = 0;
  for (const Pieces& of_size : pieces) nbytes += of_size.count * Aligned(of_size.nbytes);
  if (!registers_ || nbytes == 0) return absl::OkStatus();
  const auto arena = std::make_shared<Arena>();
  FSDP_ASSIGN_OR_RETURN(arena->memory, group_->Allocate(nbytes));
  arenas_.push_back(arena);
  left_ = Buffer(
      arena->memory.data(), nbytes, [arena] {}, arena->memory.device());
  return absl::OkStatus();
}

absl::StatusOr<Buffer> SlotMemory::Allocate(int64_t nbytes) {
  if (registers_ && nbytes == 0) return group_->device()->Allocate(0);  // a registered one takes NCCL's granularity
  const int64_t taken = Aligned(nbytes);
  if (!left_ || left_.nbytes() < taken) return group_->Allocate(nbytes);
  Buffer piece = left_.Slice(0, nbytes);
  left_ = left_.nbytes() > taken ? left_.Slice(taken, left_.nbytes() - taken) : Buffer();
  return piece;
}

absl::Status SlotMemory::Register(const absl::Status& allocated) {
  left_ = Buffer();
  if (windows_of_.empty()) return allocated;
  FSDP_RETURN_IF_ERROR(AllReduceStatus(*windows_of_[0], allocated));
  return SetWindows(windows_of_);
}

void SlotMemory::Forget() {
  arenas_.clear();
  left_ = Buffer();
}

absl::Status SlotMemory::SetWindows(const std::vector<std::shared_ptr<ProcessGroup>>& groups) {
  const std::vector<std::shared_ptr<ProcessGroup>> wanted = groups;  // which may be windows_of_
  const auto set = [&]() -> absl::Status {
    for (const auto& arena : arenas_) {
      std::erase_if(arena->windows, [&](const auto& window) {
        return std::none_of(wanted.begin(), wanted.end(), [&](const auto& g) { return g.get() == window.first; });
      });
      for (const auto& group : wanted) {
        if (arena->windows.count(group.get()) > 0) continue;
        FSDP_ASSIGN_OR_RETURN(SymmetricGroup * symmetric, SymmetricGroupOf(*group, "symm_mem_for_comm"));
        FSDP_ASSIGN_OR_RETURN(arena->windows[group.get()], symmetric->RegisterWindow(arena->memory));
      }
    }
    return absl::OkStatus();
  };
  const absl::Status status = set();
  windows_of_ = status.ok() ? wanted : std::vector<std::shared_ptr<ProcessGroup>>();
  if (!status.ok()) {
    for (const auto& arena : arenas_) arena->windows.clear();
  }
  return status;
}

}  // namespace fsdp
