// SPDX-License-Identifier: Apache-2.0
//
//   addresses in programs         base_ [ GPU 0 | GPU 1 | ... ]   no access: a load or store by host code is SIGSEGV
//   the same for kernels          view_ [ GPU 0 | GPU 1 | ... ]   a file in memory, readable and writable
//
// A pointer p of a program becomes p - base_ + view_ in a kernel or copy (KernelView). Each GPU has 8 GiB of addresses,
// of which the system backs only touched pages. Allocation is first fit over the live ranges: slow with many of them,
// which tests do not have, and deterministic, so that an address of a run can be found again in the next.

#include "fsdp/cuda/emulator/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};
// Freed memory of at least this size is returned to the system.
constexpr size_t kLargeBytes = size_t{1} << 20;

constexpr size_t TotalBytes() { return kEmulatedDevices * EmulatedMemory::kBytesPerDevice; }

size_t Reserved(size_t nbytes) { return (nbytes + kGuardBytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

EmulatedMemory& EmulatedMemory::Get() {
  static auto* const memory = new EmulatedMemory;  // outlives every static of a test
  return *memory;
}

EmulatedMemory::EmulatedMemory() {
  file_ = memfd_create("emulated GPU memory", MFD_CLOEXEC);
  Check(file_ >= 0 && ftruncate(file_, static_cast<off_t>(TotalBytes())) == 0, "a file for emulated GPU memory");
  void* base = mmap(nullptr, TotalBytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* view = mmap(nullptr, TotalBytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  Check(base != MAP_FAILED && view != MAP_FAILED, "addresses for emulated GPU memory");
  base_ = reinterpret_cast<uintptr_t>(base);
  view_ = reinterpret_cast<uintptr_t>(view);
}

void* EmulatedMemory::Allocate(int device, size_t nbytes) {
  const uintptr_t begin = base_ + static_cast<size_t>(device) * kBytesPerDevice;
  const uintptr_t end = begin + kBytesPerDevice;
  if (nbytes > kBytesPerDevice) return nullptr;
  uintptr_t place = begin;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The first gap that is large enough.
    for (auto it = live_.lower_bound(begin); it != live_.end() && it->first < end; ++it) {
      if (it->first - place >= Reserved(nbytes)) break;
      place = it->first + Reserved(it->second);
    }
    if (end - place < Reserved(nbytes)) return nullptr;
    live_[place] = nbytes;
  }
  auto* data = reinterpret_cast<std::byte*>(place);
  // 0xff bytes are NaN in float64, float32 and the 16-bit floats, and -1 in integers.
  std::memset(KernelView(data), 0xff, nbytes);
  std::memset(KernelView(data) + nbytes, static_cast<int>(kGuard), Reserved(nbytes) - nbytes);
  return data;
}

bool EmulatedMemory::Free(void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = live_.find(reinterpret_cast<uintptr_t>(data));
  if (it == live_.end()) return false;
  const size_t nbytes = it->second;
  const std::byte* end = KernelView(static_cast<std::byte*>(data)) + nbytes;
  if (!std::all_of(end, end + Reserved(nbytes) - nbytes, [](std::byte b) { return b == kGuard; })) {
    std::fprintf(stderr, "CUDA emulator: a kernel or copy wrote past %zu bytes of device memory\n", nbytes);
    std::abort();
  }
  if (nbytes >= kLargeBytes) {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(it->first - base_),
              static_cast<off_t>(Reserved(nbytes)));
  }
  live_.erase(it);
  return true;
}

int EmulatedMemory::DeviceOf(const void* data) const {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(data) - base_;
  return offset < TotalBytes() ? static_cast<int>(offset / kBytesPerDevice) : -1;
}

bool EmulatedMemory::IsValid(const void* data, size_t nbytes) {
  if (DeviceOf(data) < 0) return data != nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = live_.upper_bound(begin);
  if (it == live_.begin()) return false;
  --it;
  return begin + nbytes <= it->first + it->second;
}

size_t EmulatedMemory::FreeBytes(int device) {
  const uintptr_t begin = base_ + static_cast<size_t>(device) * kBytesPerDevice;
  size_t used = 0;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [place, nbytes] : live_) {
    if (place >= begin && place < begin + kBytesPerDevice) used += Reserved(nbytes);
  }
  return kBytesPerDevice - used;
}

void ToKernelView(int device, void* parameter, size_t nbytes) {
  auto* bytes = static_cast<std::byte*>(parameter);
  for (size_t i = 0; i + sizeof(void*) <= nbytes; i += sizeof(void*)) {
    void* word;
    std::memcpy(&word, bytes + i, sizeof(word));
    const EmulatedMemory& memory = EmulatedMemory::Get();
    if (memory.Reaches(device, word)) word = memory.KernelView(word);
    std::memcpy(bytes + i, &word, sizeof(word));
  }
}

}  // namespace fsdp
