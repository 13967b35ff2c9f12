// SPDX-License-Identifier: Apache-2.0
//
// StreamMemory: the device memory that one stream allocates for its own work (tensor/ordered_memory.h). CUDA's pool
// allocates and frees it in the order of that stream, so the memory of a dropped buffer serves the next allocation
// without waiting. Thread-safe; live buffers hold a reference, and may outlive the stream.
#ifndef FSDP_CUDA_STREAM_MEMORY_H_
#define FSDP_CUDA_STREAM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/cuda/cuda_memory.h"
#include "fsdp/tensor/buffer.h"

struct CUstream_st;

namespace fsdp {

class StreamMemory : public std::enable_shared_from_this<StreamMemory> {
 public:
  // `memory` counts the allocations, and belongs to the GPU of `stream`.
  StreamMemory(std::shared_ptr<CudaMemory> memory, CUstream_st* stream) : memory_(std::move(memory)), stream_(stream) {}

  // For work that is put on the stream after this call. Same errors as CudaMemory::Allocate.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes);

  // Whether `data` is inside a live buffer of this object.
  bool Contains(const void* data) const;

  // While the stream's work is captured, and after Close, nothing can be freed in its order. REQUIRES for BeginCapture
  // and Close: the stream has done all its work, so that memory freed afterwards is unused.
  void BeginCapture() { SetInOrder(false); }
  void EndCapture() { SetInOrder(true); }
  void Close() { SetInOrder(false); }

 private:
  // Called by the last copy of a buffer, on any thread; does not wait for the GPU.
  void Free(void* data, int64_t nbytes);
  void SetInOrder(bool in_order);

  const std::shared_ptr<CudaMemory> memory_;
  CUstream_st* const stream_;  // not used while in_order_ is off

  mutable std::mutex mutex_;
  bool in_order_ = true;                      // guarded by mutex_
  std::map<const std::byte*, int64_t> live_;  // guarded by mutex_; sizes
};

}  // namespace fsdp

#endif  // FSDP_CUDA_STREAM_MEMORY_H_
