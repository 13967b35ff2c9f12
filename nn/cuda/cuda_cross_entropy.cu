// SPDX-License-Identifier: Apache-2.0
//
// Forward: a block of 512 threads for each row reads the row once. Each thread keeps a maximum and a sum of
// exponentials relative to it (an online softmax), and the threads' pairs are then brought to the row's maximum and
// added. One pass matters here: a row of logits is some hundred KB and comes from memory. Sums are float64. A second
// kernel of one block adds the rows' losses in a fixed order.
//
// Backward: one pass, from the statistics of forward; the one-hot term is a comparison, as every thread knows its
// element's number. `grad` may be the logits: each element is read and written by one thread.

#include <algorithm>

#include "fsdp/cuda/block_sum.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/cuda/refuse_value.h"
#include "fsdp/cuda/shared_memory.h"
#include "fsdp/nn/cuda/cuda_cross_entropy.h"

namespace fsdp {
namespace {

constexpr int kRowThreads = 512;
constexpr int kLossThreads = 1024;

// Row `row` of [rows, columns] as packs: rows begin anywhere, each at its own distance from alignment.
template <int N, typename T>
__device__ PackedRange RowRange(const T* row, int64_t columns) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % (N * sizeof(T)) / sizeof(T));
  const int64_t head = misaligned == 0 ? 0 : N - misaligned;
  if (head >= columns) return {0, 0, columns};
  return {head, (columns - head) / N, columns};
}

// ForEachPack over the threads of one block.
template <int N, typename F>
__device__ void ForRowPacks(const PackedRange& range, F f) {
  for (int64_t pack = threadIdx.x; pack < range.packs; pack += kRowThreads) f(PackSize<N>(), range.head + pack * N);
  for (int64_t i = threadIdx.x; i < range.numel - range.packs * N; i += kRowThreads) {
    f(PackSize<1>(), i < range.head ? i : i + range.packs * N);
  }
}

// The largest of some x, and the sum of e^(x - maximum): of one pass, so the sum is scaled when the maximum grows.
struct OnlineSum {
  template <int N, typename T>
  __device__ void Add(const Pack<T, N>& xs) {
    float pack_maximum = Widen<float>(xs.at[0]);
#pragma unroll
    for (int k = 1; k < N; ++k) pack_maximum = fmaxf(pack_maximum, Widen<float>(xs.at[k]));
    if (pack_maximum > maximum) {
      sum *= static_cast<double>(expf(maximum - pack_maximum));
      maximum = pack_maximum;
    }
    float pack_sum = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) pack_sum += expf(Widen<float>(xs.at[k]) - maximum);
    sum += static_cast<double>(pack_sum);
  }

  float maximum = -INFINITY;
  double sum = 0;
};

struct RowShared {
  WarpSums<double, kRowThreads> sums;
  float maxima[kRowThreads / kWarpThreads];
};

// In every thread of the block.
__device__ float BlockMax(float value, RowShared& shared) {
  value = WarpMax(value);
  if (threadIdx.x % kWarpThreads == 0) shared.maxima[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  float maximum = shared.maxima[0];
#pragma unroll
  for (int warp = 1; warp < kRowThreads / kWarpThreads; ++warp) maximum = fmaxf(maximum, shared.maxima[warp]);
  return maximum;
}

template <int N, typename T>
__global__ void Forward(const T* logits, const int32_t* targets, int64_t columns, float* statistics, double* row_losses,
                        KernelRefusal* refusal) {
  auto& shared = SharedMemory<RowShared>();
  const int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  OnlineSum own;
  ForRowPacks<N>(RowRange<N>(x, columns),
                 [&](auto size, int64_t i) { own.Add(LoadPack<decltype(size)::kSize>(x + i)); });
  const float maximum = BlockMax(own.maximum, shared);
  // A thread without logits has nothing to scale; with -inf as its maximum that would be NaN where all logits are -inf.
  const double scaled = own.sum == 0 ? 0 : own.sum * static_cast<double>(expf(own.maximum - maximum));
  const double sum = BlockSum<kRowThreads>(scaled, shared.sums);
  if (threadIdx.x != 0) return;
  statistics[2 * row] = maximum;
  statistics[2 * row + 1] = static_cast<float>(1 / sum);
  const int32_t target = targets[row];
  if (target < 0 || target >= columns) {
    RefuseValue(refusal, {0, KernelRefusal::kTarget, target, row, gridDim.x, columns});
    row_losses[row] = static_cast<double>(NAN);
    return;
  }
  row_losses[row] = log(sum) - (Widen<double>(x[target]) - static_cast<double>(maximum));
}

__global__ void MeanLoss(const double* row_losses, int64_t rows, float* loss) {
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kLossThreads) sum += row_losses[row];
  sum = BlockSum<kLossThreads>(sum, SharedMemory<WarpSums<double, kLossThreads>>());
  if (threadIdx.x == 0) *loss = static_cast<float>(sum / static_cast<double>(rows));
}

// `grad` may be `logits`; their packs then begin at the same elements. If the two differ in alignment, no packs are
// used.
template <int N, typename T>
__global__ void Backward(const T* logits, const int32_t* targets, const float* statistics, int64_t columns,
                         float factor, T* grad_logits) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  T* grad = grad_logits + row * columns;
  const float maximum = statistics[2 * row];
  const float inverse_sum = statistics[2 * row + 1];
  const int32_t target = targets[row];
  PackedRange range = RowRange<N>(x, columns);
  if (reinterpret_cast<uintptr_t>(x) % (N * sizeof(T)) != reinterpret_cast<uintptr_t>(grad) % (N * sizeof(T))) {
    range = {0, 0, columns};
  }
  ForRowPacks<N>(range, [&](auto size, int64_t i) {
    constexpr int kSize = decltype(size)::kSize;
    Pack<T, kSize> pack = LoadPack<kSize>(x + i);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float p = expf(Widen<float>(pack.at[k]) - maximum) * inverse_sum;
      pack.at[k] = Round<T>((i + k == target ? p - 1 : p) * factor);
    }
    StorePack(pack, grad + i);
  });
}

}  // namespace

void CudaCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                      double* row_losses, KernelRefusal* refusal, CUstream_st* stream) {
  const int64_t rows = logits.shape().dim(0);
  WithActivationType(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (rows == 0) return;
    Launch(Forward<kPackBytes / sizeof(T), T>, static_cast<unsigned>(rows), kRowThreads, sizeof(RowShared), stream,
           logits.data_as<const T>(), targets.data_as<const int32_t>(), logits.shape().dim(1),
           statistics.data_as<float>(), row_losses, refusal);
  });
  Launch(MeanLoss, 1, kLossThreads, sizeof(WarpSums<double, kLossThreads>), stream, row_losses, rows,
         loss.data_as<float>());
}

void CudaCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, CUstream_st* stream) {
  const int64_t rows = logits.shape().dim(0);
  if (logits.numel() == 0) return;
  const float factor = scale / static_cast<float>(rows);
  WithActivationType(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Launch(Backward<kPackBytes / sizeof(T), T>, static_cast<unsigned>(rows), kRowThreads, 0, stream,
           logits.data_as<const T>(), targets.data_as<const int32_t>(), statistics.data_as<const float>(),
           logits.shape().dim(1), factor, grad_logits.data_as<T>());
  });
}

}  // namespace fsdp
