// SPDX-License-Identifier: Apache-2.0
//
// CudaMemory: the memory of one CUDA device: an exact count of live bytes over CUDA's own stream-ordered pool, and a
// cache of pinned host memory. The pool is the process's default one for that GPU and keeps freed memory. A buffer of
// Allocate is freed only after no stream holds it any more (cuda_stream.h), so its memory can be used by any stream;
// stream_memory.h has the buffers of a single stream. Thread-safe; live buffers hold a reference.
#ifndef FSDP_CUDA_CUDA_MEMORY_H_
#define FSDP_CUDA_CUDA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/cuda/capture_arena.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/device_id.h"

struct CUstream_st;

namespace fsdp {

class CudaMemory : public std::enable_shared_from_this<CudaMemory> {
 public:
  // kUnimplemented for a GPU without memory pools.
  static absl::StatusOr<std::shared_ptr<CudaMemory>> Create(int device);
  // Frees the kept pinned blocks. No buffer is left by then, because each holds a reference.
  ~CudaMemory();

  // `nbytes` of device memory, aligned to at least 256 bytes, immediately usable by any stream. The buffer of 0 bytes
  // is not null. kResourceExhausted reports the bytes in use and free.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes);

  // For StreamMemory: counted memory that is allocated and freed in the order of `stream`; null: freed when all work
  // that used it is done. Same errors as Allocate. FreeOn does not wait for the GPU.
  absl::StatusOr<void*> AllocateOn(CUstream_st* stream, int64_t nbytes);
  void FreeOn(CUstream_st* stream, void* data, int64_t nbytes);

  DeviceId device_id() const { return {DeviceType::kCuda, device_}; }

  // True if this thread called BeginArena and not yet EndArena.
  bool InArena() const { return ArenaOfThisThread() != nullptr; }

  // From now on the allocations of the calling thread come from a new arena, which takes its memory from this object,
  // until EndArena by the same thread. Null if another capture is under way.
  std::shared_ptr<CaptureArena> BeginArena();
  void EndArena();

  // Host memory that the GPU reaches without a copy. Not counted. Pinning costs milliseconds, so freed blocks are kept
  // until this is destroyed. Sizes are rounded up to a power of two, from 1 MiB on to a multiple of 1 MiB; the minimum
  // is 4096 bytes.
  absl::StatusOr<Buffer> AllocatePinned(int64_t nbytes);

  // Counts memory of another owner; negative when freed.
  void Note(int64_t nbytes);

  // Requested bytes of live buffers, plus Note; the peak is since ResetPeak.
  int64_t allocated_bytes() const;
  int64_t peak_allocated_bytes() const;
  // Sets the peak to the present amount.
  void ResetPeak();

 private:
  CudaMemory(int device, CUstream_st* stream) : device_(device), stream_(stream) {}

  // Counted; blocks until any stream may use the memory.
  absl::StatusOr<Buffer> AllocateFromPool(int64_t nbytes);
  // Null unless the calling thread captures.
  std::shared_ptr<CaptureArena> ArenaOfThisThread() const;
  // Takes `nbytes` from the pool, in the order of `stream`. If there is no room, tries again after all work on the GPU.
  absl::Status TakeFromPool(CUstream_st* stream, int64_t nbytes, void** data) const;
  // Keeps a pinned block for the next AllocatePinned of the same rounded size.
  void KeepPinned(void* data, size_t size);

  const int device_;
  CUstream_st* const stream_;  // used only for allocations

  mutable std::mutex mutex_;
  int64_t allocated_ = 0;                             // guarded by mutex_
  int64_t peak_ = 0;                                  // guarded by mutex_; of allocated_, since ResetPeak
  std::map<size_t, std::vector<void*>> pinned_kept_;  // guarded by mutex_; by rounded size
  std::shared_ptr<CaptureArena> arena_;               // guarded by mutex_; null outside of a capture
  std::thread::id captures_;                          // guarded by mutex_; the thread that uses arena_
};

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_MEMORY_H_
