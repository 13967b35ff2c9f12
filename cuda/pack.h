// SPDX-License-Identifier: Apache-2.0
//
// Pack: what a thread loads and stores in one instruction, and how elementwise kernels cut their work: as many whole
// packs as alignment allows, the rest one by one. For .cu files.
#ifndef FSDP_CUDA_PACK_H_
#define FSDP_CUDA_PACK_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace fsdp {

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

// The widest access there is.
constexpr size_t kPackBytes = 16;

inline bool IsAligned(const void* data, size_t to) { return reinterpret_cast<uintptr_t>(data) % to == 0; }

// Threads of a block of an elementwise kernel, and how many blocks at most: the kernels step by the whole grid.
constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 16384;

inline int Blocks(int64_t threads) {
  return static_cast<int>(std::min((threads + kThreads - 1) / kThreads, kMaxBlocks));
}

// Calls f(i) for the calling thread's share of [0, n).
template <typename F>
__device__ inline void ForEach(int64_t n, F f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}

}  // namespace fsdp

#endif  // FSDP_CUDA_PACK_H_
