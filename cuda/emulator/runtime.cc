// SPDX-License-Identifier: Apache-2.0
//
// The functions of include/cuda_runtime_api.h, except functions on streams and events (emulated_stream.cc) and on
// graphs (graph.cc).
//
// Errors as in CUDA: each function returns its own error, and keeps it as the thread's last one (Answer). An error of a
// kernel (a trap) is permanent for the device: from then on every function on that device returns it, instead of its
// own result, until a test calls ResetEmulatedDevices.
//
// The emulated machine has four GPUs of compute capability 9.0 with 227 KB of shared memory for a block and peer access
// among them. Its pool is plain allocation: cudaMallocAsync allocates immediately, and cudaFreeAsync frees in stream
// order.

#include "fsdp/cuda/emulator/runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "fsdp/cuda/emulator/block.h"
#include "fsdp/cuda/emulator/device_memory.h"
#include "fsdp/cuda/emulator/emulated_stream.h"

namespace fsdp {
namespace {

// The shared memory that a block may have without, and with, cudaFuncSetAttribute.
constexpr size_t kMaxStaticShared = 48 << 10;
constexpr size_t kMaxShared = 227 << 10;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
std::array<std::atomic<cudaError_t>, kEmulatedDevices> device_errors = {};
std::atomic<int64_t> launches = 0, copies = 0, memsets = 0;

std::mutex kernels_mutex;
std::map<const void*, size_t> kernel_shared_bytes;  // guarded by kernels_mutex; by cudaFuncSetAttribute

}  // namespace

int EmulatedCurrentDevice() { return current_device; }

cudaError_t EmulatedDeviceError(int device) { return device_errors[device].load(); }

cudaError_t Answer(cudaError_t error) {
  if (error == cudaSuccess) error = EmulatedDeviceError(current_device);
  // cudaErrorNotReady is an answer and not an error, so it is not kept.
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t EmulateKernel(cudaStream_t stream, const void* kernel, const KernelShape& shape,
                          std::function<void()> thread) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  size_t allowed = kMaxStaticShared;
  {
    std::lock_guard<std::mutex> lock(kernels_mutex);
    if (const auto it = kernel_shared_bytes.find(kernel); it != kernel_shared_bytes.end()) allowed = it->second;
  }
  const size_t threads = size_t{shape.block.x} * shape.block.y * shape.block.z;
  const size_t blocks = size_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  // CUDA's limits of a launch.
  if (threads == 0 || threads > EmulatedBlock::kMaxThreads || blocks == 0 || shape.grid.x > 0x7fffffff ||
      shape.grid.y > 65535 || shape.grid.z > 65535 || shape.shared_bytes > allowed) {
    return Answer(cudaErrorInvalidConfiguration);
  }
  if (const cudaError_t error = Answer(cudaSuccess); error != cudaSuccess) return error;
  ++launches;
  stream->Push([shape, thread = std::move(thread), device = stream->device()] {
    // A kernel that was already on the stream when the device failed does not run, as on a GPU.
    if (EmulatedDeviceError(device) != cudaSuccess) return;
    if (!EmulatedBlock::RunKernel(shape, thread)) device_errors[device] = cudaErrorLaunchFailure;
  });
  return cudaSuccess;
}

int64_t EmulatedLaunches() { return launches; }
int64_t EmulatedCopies() { return copies; }
int64_t EmulatedMemsets() { return memsets; }

void ResetEmulatedDevices() {
  for (auto& error : device_errors) error = cudaSuccess;
}

}  // namespace fsdp

using fsdp::Answer;
using fsdp::EmulatedMemory;
using fsdp::kEmulatedDevices;

namespace {

bool IsDevice(int device) { return device >= 0 && device < kEmulatedDevices; }

// Whether `kind` matches the two addresses.
bool HasDirection(const void* to, const void* from, cudaMemcpyKind kind) {
  const bool to_device = EmulatedMemory::Get().DeviceOf(to) >= 0;
  const bool from_device = EmulatedMemory::Get().DeviceOf(from) >= 0;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

}  // namespace

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (value < 0 || static_cast<size_t>(value) > fsdp::kMaxShared) return Answer(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> lock(fsdp::kernels_mutex);
  // A smaller value does not lower the default limit.
  fsdp::kernel_shared_bytes[kernel] = std::max<size_t>(value, fsdp::kMaxStaticShared);
  return Answer(cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kEmulatedDevices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = fsdp::current_device;
  return Answer(cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  if (!IsDevice(device)) return Answer(cudaErrorInvalidDevice);
  fsdp::current_device = device;
  return Answer(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!IsDevice(device)) return Answer(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(fsdp::kMaxShared);
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 2;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
  }
  return Answer(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!IsDevice(device)) return Answer(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU %d", device);
  properties->totalGlobalMem = EmulatedMemory::kBytesPerDevice;
  properties->sharedMemPerBlockOptin = fsdp::kMaxShared;
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->asyncEngineCount = 2;
  return Answer(cudaSuccess);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  *pool = reinterpret_cast<cudaMemPool_t>(static_cast<uintptr_t>(device) + 1);
  return Answer(IsDevice(device) ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return Answer(cudaSuccess); }

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, size_t count) {
  const int owner = static_cast<int>(reinterpret_cast<uintptr_t>(pool)) - 1;
  for (size_t i = 0; i < count; ++i) {
    if (!IsDevice(owner) || !IsDevice(access[i].location.id)) return Answer(cudaErrorInvalidValue);
    EmulatedMemory::Get().Allow(access[i].location.id, owner);
  }
  return Answer(cudaSuccess);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!IsDevice(device) || !IsDevice(peer)) return Answer(cudaErrorInvalidDevice);
  *can = device != peer;
  return Answer(cudaSuccess);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  // Unlike CUDA, enabling it twice is not an error here; callers must accept both. As in CUDA, it has no effect on
  // memory of a pool.
  return Answer(IsDevice(peer) && peer != fsdp::current_device ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// A sticky error of the device stays; the thread's own error is cleared.
cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  fsdp::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t sticky = fsdp::EmulatedDeviceError(fsdp::current_device);
  return sticky != cudaSuccess ? sticky : fsdp::last_error;
}

const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidMemcpyDirection:
      return "invalid copy direction for memcpy";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureMerge:
      return "operation would result in a merge of separate capture sequences";
    case cudaErrorStreamCaptureUnmatched:
      return "capture was not ended in the same stream as it began";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    default:
      return "an error that the emulator does not raise";
  }
}

cudaError_t cudaMalloc(void** data, size_t nbytes) {
  *data = EmulatedMemory::Get().Allocate(fsdp::current_device, nbytes);
  return Answer(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* data) {
  return Answer(data == nullptr || EmulatedMemory::Get().Free(data) ? cudaSuccess : cudaErrorInvalidValue);
}

// The memory is usable before the stream reaches the allocation, which is more than CUDA promises: a missing wait
// before a use on another stream is not found.
cudaError_t cudaMallocAsync(void** data, size_t nbytes, cudaStream_t stream) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (stream->capturing()) return fsdp::RefuseToCapture(*stream, cudaErrorStreamCaptureUnsupported);
  *data = EmulatedMemory::Get().Allocate(stream->device(), nbytes);
  return Answer(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

// Freed by the stream's thread, after the earlier work on the stream: a kernel that is still running keeps its memory.
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (stream->capturing()) return fsdp::RefuseToCapture(*stream, cudaErrorStreamCaptureUnsupported);
  // Checked by the caller's thread; the address is checked again, by Free, on the stream.
  if (EmulatedMemory::Get().DeviceOf(data) < 0) return Answer(cudaErrorInvalidValue);
  stream->Push([data] { EmulatedMemory::Get().Free(data); });
  return Answer(cudaSuccess);
}

// Pinned memory is ordinary memory: the emulator's copies and kernels reach all of the host's.
cudaError_t cudaHostAlloc(void** data, size_t nbytes, unsigned) {
  *data = std::aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096);
  return Answer(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaMallocHost(void** data, size_t nbytes) { return cudaHostAlloc(data, nbytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return Answer(cudaSuccess);
}

cudaError_t cudaHostRegister(void* data, size_t nbytes, unsigned) {
  return Answer(data != nullptr && nbytes > 0 ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostUnregister(void* data) { return Answer(data != nullptr ? cudaSuccess : cudaErrorInvalidValue); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = EmulatedMemory::Get().FreeBytes(fsdp::current_device);
  *total = EmulatedMemory::kBytesPerDevice;
  return Answer(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  const int device = EmulatedMemory::Get().DeviceOf(data);
  *attributes = {};
  attributes->type = device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
  attributes->device = device;
  attributes->devicePointer = device < 0 ? nullptr : const_cast<void*>(data);
  return Answer(cudaSuccess);
}

// Runs immediately on the calling thread, without order against any stream: CUDA orders it against the default stream,
// which does not exist here.
cudaError_t cudaMemcpy(void* to, const void* from, size_t nbytes, cudaMemcpyKind kind) {
  EmulatedMemory& memory = EmulatedMemory::Get();
  if (!memory.IsValid(to, nbytes) || !memory.IsValid(from, nbytes)) return Answer(cudaErrorInvalidValue);
  if (!HasDirection(to, from, kind)) return Answer(cudaErrorInvalidMemcpyDirection);
  std::memmove(memory.KernelView(to), memory.KernelView(from), nbytes);
  return Answer(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t nbytes, cudaMemcpyKind kind, cudaStream_t stream) {
  EmulatedMemory& memory = EmulatedMemory::Get();
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (!memory.IsValid(to, nbytes) || !memory.IsValid(from, nbytes)) return Answer(cudaErrorInvalidValue);
  if (!HasDirection(to, from, kind)) return Answer(cudaErrorInvalidMemcpyDirection);
  if (!memory.Reaches(stream->device(), to) || !memory.Reaches(stream->device(), from)) {
    return Answer(cudaErrorInvalidValue);
  }
  ++fsdp::copies;
  stream->Push(
      [to = memory.KernelView(to), from = memory.KernelView(from), nbytes] { std::memmove(to, from, nbytes); });
  return Answer(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t nbytes, cudaStream_t stream) {
  EmulatedMemory& memory = EmulatedMemory::Get();
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (memory.DeviceOf(data) < 0 || !memory.IsValid(data, nbytes)) return Answer(cudaErrorInvalidValue);
  ++fsdp::memsets;
  stream->Push([to = memory.KernelView(data), value, nbytes] { std::memset(to, value, nbytes); });
  return Answer(cudaSuccess);
}
