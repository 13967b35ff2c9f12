// SPDX-License-Identifier: Apache-2.0
//
// Backward without sorting and without atomic additions, whose order would differ from run to run. LinkChains finds,
// for each place n, the next place that has the same token: the places of one token form a chain in the order of the
// sequence.
//
//   tokens   5 7 5 5 7        next   2 4 3 - -        is_repeat   0 0 1 1 1
//
// SumChains then has a block for each place and run of columns; those at the first place of a chain walk it and add the
// rows of grad_out in order, all others return at once. LinkChains is quadratic in the number of tokens at worst, but
// reads 4 bytes for each, 32 at a time, and stops at the first match; a batch has some thousand tokens.

#include <type_traits>

#include "fsdp/cuda/block_sum.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/cuda/refuse_value.h"
#include "fsdp/nn/cuda/cuda_embedding.h"

namespace fsdp {
namespace {

constexpr int kWarpsPerBlock = 4;

// A warp for each token copies its row.
template <int N, typename T>
__global__ void Gather(const int32_t* tokens, int64_t count, const T* table, int64_t table_rows, int64_t columns,
                       T* out, KernelRefusal* refusal) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.y;
  if (n >= count) return;
  const int32_t token = tokens[n];
  if (token < 0 || token >= table_rows) {
    if (threadIdx.x == 0) RefuseValue(refusal, {0, KernelRefusal::kToken, token, n, count, table_rows});
    return;
  }
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * N; c < columns; c += kWarpThreads * N) {
    StorePack(LoadPack<N>(table + token * columns + c), out + n * columns + c);
  }
}

// Where each token comes next and whether it has come before: chains through `count` tokens, one for each value.
struct Chains {
  int32_t* next;       // `count` at the end of a chain
  int32_t* is_repeat;  // 0 for the first of a chain
};

// A warp for each token looks for the next one like it. `is_repeat` is 0 before.
__global__ void LinkChains(const int32_t* tokens, int64_t count, Chains chains) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.y;
  if (n >= count) return;
  int64_t next = count;
  for (int64_t begin = n + 1; begin < count && next == count; begin += kWarpThreads) {
    const int64_t m = begin + threadIdx.x;
    const unsigned like = __ballot_sync(kAllLanes, m < count && tokens[m] == tokens[n]);
    if (like != 0) next = begin + __ffs(static_cast<int>(like)) - 1;
  }
  if (threadIdx.x != 0) return;
  chains.next[n] = static_cast<int32_t>(next);
  if (next < count) chains.is_repeat[next] = 1;
}

// Sums of rows as layer_ops.h has them: float32 in runs of 32 rows, bfloat16 in runs of 256 with each sum rounded; the
// runs in float64.
template <int N, typename T>
struct RowSum {
  static constexpr int kRowsPerRun = std::is_same_v<T, float> ? 32 : 256;

  __device__ void Add(const Pack<T, N>& row) {
#pragma unroll
    for (int k = 0; k < N; ++k) run[k] = RoundTo<T>(run[k] + Widen<float>(row.at[k]));
    if (++rows == kRowsPerRun) EndRun();
  }
  __device__ void EndRun() {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      total[k] += static_cast<double>(run[k]);
      run[k] = 0;
    }
    rows = 0;
  }
  __device__ void AddTo(T* grad) {
    EndRun();
    Pack<T, N> sum = LoadPack<N>(grad);
#pragma unroll
    for (int k = 0; k < N; ++k) sum.at[k] = Round<T>(Widen<float>(sum.at[k]) + static_cast<float>(total[k]));
    StorePack(sum, grad);
  }

  int rows = 0;
  float run[N] = {};
  double total[N] = {};
};

template <int N, typename T>
__global__ void SumChains(const int32_t* tokens, int64_t count, Chains chains, const T* grad_out, int64_t padding_idx,
                          T* grad_table, int64_t table_rows, int64_t columns) {
  const int64_t first = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const int32_t token = tokens[first];
  if (chains.is_repeat[first] != 0 || token == padding_idx || token < 0 || token >= table_rows || c >= columns) return;
  RowSum<N, T> sum;
  for (int64_t n = first; n < count;) {
    const int32_t next = chains.next[n];  // asked for before the row, which takes as long
    sum.Add(LoadPack<N>(grad_out + n * columns + c));
    n = next;
  }
  sum.AddTo(grad_table + token * columns + c);
}

template <int N, typename T>
bool HasPacks(int64_t columns, const Tensor& a, const Tensor& b) {
  return columns % N == 0 && IsAligned(a.data(), sizeof(T) * N) && IsAligned(b.data(), sizeof(T) * N);
}

unsigned WarpBlocks(int64_t warps) { return static_cast<unsigned>((warps + kWarpsPerBlock - 1) / kWarpsPerBlock); }

template <int N, typename T>
void LaunchSumChains(const Tensor& tokens, const Chains& chains, const Tensor& grad_out, int64_t padding_idx,
                     const Tensor& grad_table, CUstream_st* stream) {
  constexpr int kBlock = 128;
  const int64_t columns = grad_table.shape().dim(1);
  const dim3 grid(static_cast<unsigned>(tokens.numel()),
                  static_cast<unsigned>((columns + kBlock * N - 1) / (kBlock * N)));
  Launch(SumChains<N, T>, grid, kBlock, 0, stream, tokens.data_as<const int32_t>(), tokens.numel(), chains,
         grad_out.data_as<const T>(), padding_idx, grad_table.data_as<T>(), grad_table.shape().dim(0), columns);
}

}  // namespace

void CudaEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out, KernelRefusal* refusal,
                   CUstream_st* stream) {
  const int64_t columns = table.shape().dim(1);
  const int64_t count = tokens.numel();
  if (count == 0) return;
  WithActivationType(table.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    const auto kernel = HasPacks<kPack, T>(columns, table, out) ? Gather<kPack, T> : Gather<1, T>;
    Launch(kernel, WarpBlocks(count), dim3(kWarpThreads, kWarpsPerBlock), 0, stream, tokens.data_as<const int32_t>(),
           count, table.data_as<const T>(), table.shape().dim(0), columns, out.data_as<T>(), refusal);
  });
}

int64_t EmbeddingBackwardBytes(int64_t num_tokens) { return 2 * num_tokens * static_cast<int64_t>(sizeof(int32_t)); }

void CudaEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table, void* workspace, CUstream_st* stream) {
  const int64_t count = tokens.numel();
  if (count == 0 || grad_table.numel() == 0) return;
  auto* memory = static_cast<int32_t*>(workspace);
  const Chains chains = {memory, memory + count};
  cudaMemsetAsync(chains.is_repeat, 0, count * sizeof(int32_t), stream);
  Launch(LinkChains, WarpBlocks(count), dim3(kWarpThreads, kWarpsPerBlock), 0, stream, tokens.data_as<const int32_t>(),
         count, chains);
  WithActivationType(grad_out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    if (HasPacks<kPack, T>(grad_table.shape().dim(1), grad_out, grad_table)) {
      LaunchSumChains<kPack, T>(tokens, chains, grad_out, padding_idx.value_or(-1), grad_table, stream);
    } else {
      LaunchSumChains<1, T>(tokens, chains, grad_out, padding_idx.value_or(-1), grad_table, stream);
    }
  });
}

}  // namespace fsdp
