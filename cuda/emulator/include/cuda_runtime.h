// SPDX-License-Identifier: Apache-2.0
//
// The emulator's cuda_runtime.h: the additions of CUDA C++ to C++, as far as this repository's kernels use them. A
// kernel is an ordinary function; its threads are fibers (../block.h). There is no static __shared__: kernels take
// their shared memory from cuda/dynamic_shared_memory.h. CUDA's approximate functions (__expf, rsqrtf) are exact here.
#ifndef FSDP_CUDA_EMULATOR_INCLUDE_CUDA_RUNTIME_H_
#define FSDP_CUDA_EMULATOR_INCLUDE_CUDA_RUNTIME_H_

#include <cuda_runtime_api.h>
#include <math.h>  // CUDA's device functions are in the global namespace

#include <bit>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "fsdp/cuda/emulator/block.h"
#include "fsdp/cuda/emulator/device_memory.h"
#include "fsdp/cuda/emulator/runtime.h"
#include "fsdp/cuda/emulator/source_place.h"

// Words of CUDA C++ without a meaning for a C++ compiler.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
// As with CUDA's compiler, these may alias the bytes of any type.
struct [[gnu::may_alias]] alignas(8) uint2 {
  unsigned x, y;
};
struct [[gnu::may_alias]] alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  void* attrs;
  unsigned numAttrs;
};

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

// As in CUDA, but pointers into device memory, also inside of structs, become addresses in the kernels' view.
template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  static_assert((std::is_trivially_copyable_v<Params> && ...), "CUDA copies a kernel's parameters byte by byte");
  std::tuple<std::remove_cv_t<Params>...> params(std::forward<Args>(args)...);
  const int device = fsdp::EmulatedCurrentDevice();
  std::apply([device](auto&... param) { (fsdp::ToKernelView(device, &param, sizeof(param)), ...); }, params);
  return fsdp::EmulateKernel(config->stream, reinterpret_cast<const void*>(kernel),
                             {config->gridDim, config->blockDim, config->dynamicSmemBytes},
                             [kernel, params] { std::apply(kernel, params); });
}

// The barriers and exchanges take their source location as a default argument, so that kernels are written as for CUDA.
inline void __syncthreads(fsdp::SourcePlace place = fsdp::SourcePlace::current()) {
  fsdp::EmulatedBlock::Current().AwaitBlock(place);
}
inline void __syncwarp(unsigned mask = ~0u, fsdp::SourcePlace place = fsdp::SourcePlace::current()) {
  fsdp::EmulatedBlock::Current().AwaitWarp(mask, place);
}

// The value of lane `lane` of the calling thread's warp.
template <typename T>
T FromLane(unsigned mask, T value, int lane, fsdp::SourcePlace place) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = fsdp::EmulatedBlock::Current().Exchange(mask, bits, place)[lane];
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Lanes beyond 31 wrap around, as with a width of 32; other widths are not modelled.
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int = 32, fsdp::SourcePlace place = fsdp::SourcePlace::current()) {
  return FromLane(mask, value, lane & 31, place);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int = 32, fsdp::SourcePlace place = fsdp::SourcePlace::current()) {
  return FromLane(mask, value, (static_cast<int>(threadIdx.x) & 31) ^ lanes, place);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int = 32,
                   fsdp::SourcePlace place = fsdp::SourcePlace::current()) {
  const unsigned from = (threadIdx.x & 31) + lanes;
  return FromLane(mask, value, static_cast<int>(from < 32 ? from : threadIdx.x & 31), place);
}
// Bit l is set if lane l of `mask` has a predicate that is not 0.
inline unsigned __ballot_sync(unsigned mask, int predicate, fsdp::SourcePlace place = fsdp::SourcePlace::current()) {
  const uint64_t* votes = fsdp::EmulatedBlock::Current().Exchange(mask, predicate != 0, place);
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && votes[lane] != 0) ballot |= 1u << lane;
  }
  return ballot;
}

template <typename T>
T __ldg(const T* address) {
  return *address;
}

// Between fibers of one block nothing can interleave; atomics matter for streams, whose kernels run at the same time.
inline int atomicAdd(int* address, int value) { return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline int atomicCAS(int* address, int expected, int value) {
  __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
inline int atomicExch(int* address, int value) { return __atomic_exchange_n(address, value, __ATOMIC_RELEASE); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Ends the kernel and, as on a GPU, the process's use of the device: every later call fails.
[[noreturn]] inline void __trap() { fsdp::EmulatedBlock::Current().Trap(); }

// Rounded once each, never fused. The emulator's sources are compiled without contraction.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float rsqrtf(float a) { return 1 / sqrtf(a); }
inline float __expf(float a) { return expf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }

#endif  // FSDP_CUDA_EMULATOR_INCLUDE_CUDA_RUNTIME_H_
