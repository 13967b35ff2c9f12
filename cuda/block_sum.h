// SPDX-License-Identifier: Apache-2.0
//
// Sums and maxima over the threads of a warp or a block, in trees of fixed shape: the same bits in every run, unlike
// sums by atomic operations, which depend on the order of arrival. All threads of the warp or block must call. For .cu
// files.
#ifndef FSDP_CUDA_BLOCK_SUM_H_
#define FSDP_CUDA_BLOCK_SUM_H_

#include <cuda_runtime.h>

namespace fsdp {

// Threads of a warp, and the mask of all its lanes.
constexpr int kWarpThreads = 32;
constexpr unsigned kAllLanes = ~0u;

// The sum over the 32 lanes, in every lane: a butterfly, in which lanes i and i ^ 16, then i ^ 8, ..., i ^ 1 exchange.
// The order of the additions is fixed, and the bits are the same in every lane.
template <typename T>
__device__ inline T WarpSum(T value) {
#pragma unroll
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAllLanes, value, lanes);
  return value;
}

// The largest of the 32 lanes' values, in every lane; a NaN counts only if all are NaN (fmaxf).
__device__ inline float WarpMax(float value) {
#pragma unroll
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}

// The shared memory that BlockSum needs, for a block of N threads: one value for each warp.
template <typename T, int N>
// N is at most 1024, as for any block.
struct WarpSums {
  T of[N / kWarpThreads];
};

// The sum over a one-dimensional block of N threads, N a multiple of 32, in every thread: warps first, then the warps'
// sums in ascending order. Two barriers; after the last one `sums` may be reused immediately. `sums` must be shared
// memory, the same for all threads of the block.
template <int N, typename T>
__device__ inline T BlockSum(T value, WarpSums<T, N>& sums) {
  value = WarpSum(value);
  // The first lane of each warp stores the sum of its warp.
  if (threadIdx.x % kWarpThreads == 0) sums.of[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  T total = 0;
#pragma unroll
  for (int warp = 0; warp < N / kWarpThreads; ++warp) total += sums.of[warp];
  __syncthreads();
  return total;
}

}  // namespace fsdp

#endif  // FSDP_CUDA_BLOCK_SUM_H_
