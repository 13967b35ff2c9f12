// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/cuda/fake_nccl_windows.h"

#include <algorithm>
#include <iterator>
#include <mutex>

namespace fsdp::fake_nccl {
namespace {

struct Allocation {
  size_t nbytes = 0;
  int windows = 0;  // of all communicators
};

std::mutex memory_mutex;
std::map<uintptr_t, Allocation> allocations;  // of ncclMemAlloc, by address; guarded by memory_mutex

// Adds to the windows of the allocation that begins at `data`; false if it does not have `nbytes`.
bool AddWindows(uintptr_t data, size_t nbytes, int by) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  const auto found = allocations.find(data);
  if (found == allocations.end() || found->second.nbytes < nbytes) return false;
  found->second.windows += by;
  return true;
}

uintptr_t AddressOf(const void* data) { return reinterpret_cast<uintptr_t>(data); }

}  // namespace

Windows::~Windows() {
  for (const auto& [rank, windows] : live_) {
    for (const auto& [data, window] : windows) AddWindows(data, window->nbytes, -1);
  }
}

ncclResult_t Windows::Register(int rank, void* data, size_t nbytes, int flags, ncclWindow_t* window) {
  *window = nullptr;
  if (data == nullptr || nbytes == 0 || flags != NCCL_WIN_COLL_SYMMETRIC) return ncclInvalidArgument;
  const uintptr_t address = AddressOf(data);
  if (pending_.count(rank) > 0 || Find(rank, data).is_in_window() || !AddWindows(address, nbytes, 1)) {
    return ncclInvalidUsage;
  }
  const int64_t number = begun_[rank]++;
  sizes_[number][rank] = nbytes;
  pending_[rank] = {{.number = number, .data = address, .nbytes = nbytes}, window};
  return ncclSuccess;
}

ncclResult_t Windows::Progress(int rank) {
  const auto found = pending_.find(rank);
  if (found == pending_.end()) return ncclSuccess;
  const std::map<int, size_t>& sizes = sizes_[found->second.wanted.number];
  if (static_cast<int>(sizes.size()) < size_) return ncclInProgress;
  const Pending done = found->second;
  pending_.erase(found);
  const bool equal = std::all_of(sizes.begin(), sizes.end(),
                                 [&](const auto& of_rank) { return of_rank.second == done.wanted.nbytes; });
  if (!equal) {
    AddWindows(done.wanted.data, done.wanted.nbytes, -1);
    return ncclInvalidUsage;
  }
  auto made = std::make_unique<ncclWindow_vidmem>(done.wanted);
  *done.window = made.get();
  live_[rank][made->data] = std::move(made);
  Count(&FakeNcclCounts::windows, 1);
  return ncclSuccess;
}

ncclResult_t Windows::Deregister(int rank, ncclWindow_t window) {
  auto& windows = live_[rank];
  const auto found =
      std::find_if(windows.begin(), windows.end(), [&](const auto& entry) { return entry.second.get() == window; });
  if (found == windows.end()) return ncclInvalidArgument;
  AddWindows(found->first, found->second->nbytes, -1);
  windows.erase(found);
  Count(&FakeNcclCounts::windows, -1);
  return ncclSuccess;
}

Place Windows::Find(int rank, const void* data) const {
  const auto of_rank = live_.find(rank);
  if (of_rank == live_.end()) return {};
  const auto after = of_rank->second.upper_bound(AddressOf(data));
  if (after == of_rank->second.begin()) return {};
  const ncclWindow_vidmem& window = *std::prev(after)->second;
  const uintptr_t offset = AddressOf(data) - window.data;
  return offset < window.nbytes ? Place{window.number, offset} : Place{};
}

int Windows::count(int rank) const {
  const auto found = live_.find(rank);
  return found == live_.end() ? 0 : static_cast<int>(found->second.size());
}

void Windows::DeregisterAll(int rank) {
  pending_.erase(rank);
  while (count(rank) > 0) Deregister(rank, live_[rank].begin()->second.get());
}

}  // namespace fsdp::fake_nccl

using fsdp::FakeNcclCounts;
using fsdp::fake_nccl::Count;

ncclResult_t ncclMemAlloc(void** data, size_t nbytes) {
  if (cudaMalloc(data, nbytes) != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard<std::mutex> lock(fsdp::fake_nccl::memory_mutex);
  fsdp::fake_nccl::allocations[fsdp::fake_nccl::AddressOf(*data)] = {.nbytes = nbytes};
  Count(&FakeNcclCounts::allocations, 1);
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* data) {
  {
    const std::lock_guard<std::mutex> lock(fsdp::fake_nccl::memory_mutex);
    const auto found = fsdp::fake_nccl::allocations.find(fsdp::fake_nccl::AddressOf(data));
    if (found == fsdp::fake_nccl::allocations.end()) return ncclInvalidArgument;
    if (found->second.windows > 0) Count(&FakeNcclCounts::freed_windows, 1);
    fsdp::fake_nccl::allocations.erase(found);
  }
  Count(&FakeNcclCounts::allocations, -1);
  return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
