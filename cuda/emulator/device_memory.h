// SPDX-License-Identifier: Apache-2.0
//
// EmulatedMemory: the memory of the emulated GPUs. The same pages have two mappings. A program's pointers point into
// the first, which cannot be read or written. The second is only for kernels and copies, whose pointers are translated.
// So host code that touches device memory crashes, as it should; without this, only a GPU would reveal it.
//
// A kernel of one GPU reaches another's memory, which is its pool's, only after cudaMemPoolSetAccess; its pointers are
// not translated before that, and the access crashes.
//
// New memory is full of NaN. Each allocation is followed by a guard, which is checked when the memory is freed: a
// kernel or copy that wrote past the end then ends the process. Thread-safe.
#ifndef FSDP_CUDA_EMULATOR_DEVICE_MEMORY_H_
#define FSDP_CUDA_EMULATOR_DEVICE_MEMORY_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace fsdp {

constexpr int kEmulatedDevices = 4;

class EmulatedMemory {
 public:
  static constexpr size_t kBytesPerDevice = size_t{8} << 30;

  // The instance of the process.
  static EmulatedMemory& Get();

  // Memory of GPU `device`, aligned to 256 bytes; null if it has no room. First fit, so the same calls give the same
  // offsets in every run. A request of 0 bytes gets its own address.
  void* Allocate(int device, size_t nbytes);

  // Returns false if no live allocation begins at `data`.
  bool Free(void* data);

  // The GPU of `data`, or -1 for memory of the host.
  int DeviceOf(const void* data) const;

  // From now on work of GPU `device` reaches the memory of GPU `owner`.
  void Allow(int device, int owner) { reached_[owner] |= 1u << device; }
  // Whether work of GPU `device` reaches `data`: memory of the host, its own, and what Allow permits.
  bool Reaches(int device, const void* data) const {
    const int owner = DeviceOf(data);
    return owner < 0 || owner == device || (reached_[owner] >> device & 1) != 0;
  }

  // Whether [data, data + nbytes) belongs to the host, or is inside one live allocation.
  bool IsValid(const void* data, size_t nbytes);

  // The address of `data` for a kernel or copy; memory of the host keeps its address.
  template <typename T>
  T* KernelView(T* data) const {
    return DeviceOf(data) < 0 ? data : reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(data) + view_ - base_);
  }

  // Bytes of `device` that are not reserved by live allocations and their guards.
  size_t FreeBytes(int device);

 private:
  EmulatedMemory();

  uintptr_t base_ = 0;  // of GPU 0; the others' memory follows
  uintptr_t view_ = 0;
  int file_ = -1;
  std::array<std::atomic<unsigned>, kEmulatedDevices> reached_ = {};  // by owner, a bit for each device

  std::mutex mutex_;
  std::map<uintptr_t, size_t> live_;  // guarded by mutex_; requested bytes, by address
};

// Translates, as KernelView, each aligned word of a parameter of a kernel of GPU `device` that is a pointer into device
// memory that it reaches, also inside of structs. A number that happens to equal such an address would be changed too;
// the addresses are high enough that this does not happen in tests.
void ToKernelView(int device, void* parameter, size_t nbytes);

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_DEVICE_MEMORY_H_
