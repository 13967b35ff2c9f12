// SPDX-License-Identifier: Apache-2.0
//
// Device memory comes from CUDA's pool (cudaMallocAsync), which allocates in the order of a stream. There are two
// kinds:
//
//   Allocate      for any stream. It is allocated and freed on a stream that has no other work, and Allocate waits
//                 for it. This is sound because a Buffer is freed only after no stream's work holds it any more, and
//                 short because the stream is empty and the pool keeps freed memory (SetUpPool).
//   AllocateOn    for one stream's own work, such as the activations and temporaries of a step: no wait, and memory is
//                 reused before the work that used it has run (stream_memory.h).
//
// The pool may not make an allocation wait for work on another stream: Allocate would then wait for the GPU.

#include "fsdp/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_status.h"

namespace fsdp {
namespace {

constexpr size_t kPinnedPage = 4096;
constexpr size_t kPinnedStep = size_t{1} << 20;

// Few different sizes, so that a kept block is likely to fit: powers of two up to 1 MiB, multiples of 1 MiB above.
size_t RoundedPinnedSize(int64_t nbytes) {
  const auto wanted = static_cast<size_t>(nbytes);
  if (wanted > kPinnedStep) return (wanted + kPinnedStep - 1) / kPinnedStep * kPinnedStep;
  size_t size = kPinnedPage;
  while (size < wanted) size *= 2;
  return size;
}

absl::Status RefuseNegative(int device, int64_t nbytes) {
  if (nbytes >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cuda:", device, ": cannot allocate ", nbytes, " bytes"));
}

// Keeps freed memory in the pool: returning it to the driver and requesting it again would cost more than the work in
// between.
absl::Status SetUpPool(int device) {
  cudaMemPool_t pool;
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool", device));
  uint64_t threshold = std::numeric_limits<uint64_t>::max();
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
                                  "cudaMemPoolSetAttribute", device));
  int waits = 0;
  return CudaStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &waits),
                    "cudaMemPoolSetAttribute", device);
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaMemory>> CudaMemory::Create(int device) {
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "cudaSetDevice", device));
  int has_pools = 0;
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device),
                                  "cudaDeviceGetAttribute", device));
  if (has_pools == 0) {
    return absl::UnimplementedError(absl::StrCat("cuda:", device, ": this GPU has no memory pools (cudaMallocAsync)"));
  }
  FSDP_RETURN_IF_ERROR(SetUpPool(device));
  cudaStream_t stream;
  FSDP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", device));
  return std::shared_ptr<CudaMemory>(new CudaMemory(device, stream));
}

CudaMemory::~CudaMemory() {
  for (const auto& [size, blocks] : pinned_kept_) {
    for (void* block : blocks) cudaFreeHost(block);
  }
  cudaStreamDestroy(stream_);
}

absl::StatusOr<Buffer> CudaMemory::Allocate(int64_t nbytes) {
  FSDP_RETURN_IF_ERROR(RefuseNegative(device_, nbytes));
  const std::shared_ptr<CaptureArena> arena = ArenaOfThisThread();
  return arena != nullptr ? arena->Allocate(nbytes) : AllocateFromPool(nbytes);
}

std::shared_ptr<CaptureArena> CudaMemory::BeginArena() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (arena_ != nullptr) return nullptr;
  arena_ = std::make_shared<CaptureArena>(
      [self = shared_from_this()](int64_t nbytes) { return self->AllocateFromPool(nbytes); });
  captures_ = std::this_thread::get_id();
  return arena_;
}

void CudaMemory::EndArena() {
  std::lock_guard<std::mutex> lock(mutex_);
  arena_ = nullptr;
}

std::shared_ptr<CaptureArena> CudaMemory::ArenaOfThisThread() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return captures_ == std::this_thread::get_id() ? arena_ : nullptr;
}

absl::StatusOr<Buffer> CudaMemory::AllocateFromPool(int64_t nbytes) {
  FSDP_ASSIGN_OR_RETURN(void* const data, AllocateOn(stream_, nbytes));
  Buffer buffer(
      data, nbytes, [self = shared_from_this(), data, nbytes] { self->FreeOn(nullptr, data, nbytes); }, device_id());
  // The memory belongs to stream_ until its allocation there has run. The stream has no other work, so this is short.
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", device_));
  return buffer;
}

absl::StatusOr<void*> CudaMemory::AllocateOn(CUstream_st* stream, int64_t nbytes) {
  FSDP_RETURN_IF_ERROR(RefuseNegative(device_, nbytes));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), "cudaSetDevice", device_));
  void* data = nullptr;
  FSDP_RETURN_IF_ERROR(TakeFromPool(stream, nbytes, &data));
  Note(nbytes);
  return data;
}

// Memory that another stream has freed is available to this one only after the work before the free is done.
absl::Status CudaMemory::TakeFromPool(CUstream_st* stream, int64_t nbytes, void** data) const {
  const size_t size = std::max<int64_t>(nbytes, 1);
  cudaError_t error = cudaMallocAsync(data, size, stream);
  if (error == cudaErrorMemoryAllocation && !InArena()) {
    cudaGetLastError();
    cudaDeviceSynchronize();
    error = cudaMallocAsync(data, size, stream);
  }
  if (error != cudaErrorMemoryAllocation) return CudaStatus(error, "cudaMallocAsync", device_);
  cudaGetLastError();
  size_t free = 0;
  size_t total = 0;
  cudaMemGetInfo(&free, &total);
  return absl::ResourceExhaustedError(absl::StrCat("cuda:", device_, ": cannot allocate ", nbytes, " bytes; ",
                                                   allocated_bytes(), " bytes are in use, ", free, " of the GPU's ",
                                                   total, " are free"));
}

void CudaMemory::FreeOn(CUstream_st* stream, void* data, int64_t nbytes) {
  Note(-nbytes);
  cudaSetDevice(device_);
  cudaFreeAsync(data, stream != nullptr ? stream : stream_);
  cudaGetLastError();  // after an error of the GPU, which its streams report, freeing fails too
}

absl::StatusOr<Buffer> CudaMemory::AllocatePinned(int64_t nbytes) {
  FSDP_RETURN_IF_ERROR(RefuseNegative(device_, nbytes));
  const size_t size = RoundedPinnedSize(nbytes);
  void* data = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto kept = pinned_kept_.find(size);
    if (kept != pinned_kept_.end() && !kept->second.empty()) {
      data = kept->second.back();
      kept->second.pop_back();
    }
  }
  if (data == nullptr) {
    FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), "cudaSetDevice", device_));
    FSDP_RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&data, size, cudaHostAllocPortable), "cudaHostAlloc", device_));
  }
  return Buffer(data, nbytes, [self = shared_from_this(), data, size] { self->KeepPinned(data, size); });
}

void CudaMemory::KeepPinned(void* data, size_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  pinned_kept_[size].push_back(data);
}

void CudaMemory::Note(int64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  allocated_ += nbytes;
  peak_ = std::max(peak_, allocated_);
}

int64_t CudaMemory::allocated_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return allocated_;
}

int64_t CudaMemory::peak_allocated_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peak_;
}

void CudaMemory::ResetPeak() {
  std::lock_guard<std::mutex> lock(mutex_);
  peak_ = allocated_;
}

}  // namespace fsdp
