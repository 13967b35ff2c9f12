// SPDX-License-Identifier: Apache-2.0
//
// Forward. A team of warps for each row, which stays in registers between the passes over it: mean, variance about the
// mean (which does not cancel), output. The residual addition before a norm is done as the row is loaded, and the sum
// is rounded and stored first, so the norm has the same bits as with two kernels. Sums are float32 within a pack and
// RowSumType across packs and threads, in an order that depends only on the shape and the alignment.

#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_norm.h"
#include "fsdp/nn/cuda/cuda_row_team.h"
#include "fsdp/nn/cuda/cuda_split.h"

namespace fsdp {
namespace {

// Warps of a block, so that a block is small and a GPU is filled evenly.
constexpr int kBlockWarps = 4;
// Packs of a row that a thread keeps.
constexpr int kPacks = 4;

template <typename T>
struct Operands {
  const T* x;
  const T* residual;  // null: x is normed as it is
  const T* weight;
  const T* bias;  // null for RMS norm
  T* sum;         // x + residual
  T* out;
  double* mean;  // null for RMS norm
  double* rstd;
  double eps;
  double inverse_columns;
  int64_t rows;
  int columns;
};

// The rounded sum of two packs.
template <int N, typename T>
__device__ Pack<T, N> SumOf(const Pack<T, N>& a, const Pack<T, N>& b) {
  float x[N], y[N];
  WidenPack(a, x);
  WidenPack(b, y);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] += y[k];
  return RoundPack<T>(x);
}

// Sum of the elements.
template <int N, typename T>
__device__ float TotalOf(const Pack<T, N>& xs) {
  float x[N];
  WidenPack(xs, x);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) sum += x[k];
  return sum;
}

// Sum of (x - mean)^2.
template <int N, typename T, typename Statistic>
__device__ float SquaresOf(const Pack<T, N>& xs, const Statistic& mean) {
  float x[N];
  WidenPack(xs, x);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float centered = mean.SubtractFrom(x[k]);
    sum += centered * centered;
  }
  return sum;
}

// The output for the elements `xs`.
template <bool kRms, int N, typename T, typename Statistic>
__device__ Pack<T, N> Normed(const Pack<T, N>& xs, const Pack<T, N>& weights, const Pack<T, N>& biases,
                             const Statistic& mean, const Statistic& rstd) {
  float x[N], weight[N], bias[N];
  WidenPack(xs, x);
  WidenPack(weights, weight);
  if constexpr (!kRms) WidenPack(biases, bias);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if constexpr (kRms) {
      x[k] = RoundTo<T>(rstd.Times(x[k])) * weight[k];
    } else {
      x[k] = fmaf(rstd.Times(mean.SubtractFrom(x[k])), weight[k], bias[k]);
    }
  }
  return RoundPack<T>(x);
}

// A row of the calling team, which walks over it as `elements` does: mean, rstd, output.
template <bool kRms, typename T, typename Row>
__device__ void NormRow(const Operands<T>& o, int64_t row, const Row& elements, TeamSums<RowSumType<T>, 1>& team_sums) {
  using Sum = RowSumType<T>;
  constexpr int N = Row::kSize;
  // A team beyond the last row runs along with zero columns, because all threads of a block must reach the barriers of
  // AddUp.
  const int columns = row < o.rows ? o.columns : 0;
  Sum mean[1] = {0}, squares[1] = {0};
  if constexpr (!kRms) {
    elements.ForEach([&](int, const Pack<T, N>& xs) { mean[0] += static_cast<Sum>(TotalOf(xs)); });
    team_sums.AddUp(mean);
    // By the reciprocal, which the host has computed once, in float64.
    mean[0] *= static_cast<Sum>(o.inverse_columns);
  }
  const RowStatistic<Sum> m(mean[0]);
  elements.ForEach([&](int c, const Pack<T, N>& xs) {
    squares[0] += static_cast<Sum>(c < columns ? SquaresOf(xs, m) : 0.0f);  // zeros beyond the row are off the mean
  });
  team_sums.AddUp(squares);
  const Sum rstd = ReciprocalRoot(squares[0] * static_cast<Sum>(o.inverse_columns) + static_cast<Sum>(o.eps));
  const RowStatistic<Sum> r(rstd);
  elements.ForEach([&](int c, const Pack<T, N>& xs) {
    Pack<T, N> biases;
    if constexpr (!kRms) biases = LoadRowPack<N>(o.bias, c, columns);
    StoreRowPack(Normed<kRms>(xs, LoadRowPack<N>(o.weight, c, columns), biases, m, r), o.out + row * o.columns, c,
                 columns);
  });
  // One thread of the team writes; after AddUp every thread has the same mean and rstd.
  if (columns == 0 || threadIdx.x != 0) return;
  if constexpr (!kRms) o.mean[row] = static_cast<double>(mean[0]);
  o.rstd[row] = static_cast<double>(rstd);
}

// The calling thread's packs of a row; zeros if the row is beyond the last.
template <int N, typename T>
struct RowInRegisters {
  static constexpr int kSize = N;

  __device__ RowInRegisters(const Operands<T>& o, int64_t row) {
    const int columns = row < o.rows ? o.columns : 0;
    const int64_t begin = row * o.columns;
    LoadRowPacks(o.x + begin, columns, packs);
    if (o.residual == nullptr) return;
    Pack<T, N> residuals[kPacks];
    LoadRowPacks(o.residual + begin, columns, residuals);
    ForRowPacks<N, kPacks>([&](int p, int c) {
      packs[p] = SumOf(packs[p], residuals[p]);
      StoreRowPack(packs[p], o.sum + begin, c, columns);
    });
  }
  template <typename F>
  __device__ void ForEach(F f) const {
    ForRowPacks<N, kPacks>([&](int p, int c) { f(c, packs[p]); });
  }

  Pack<T, N> packs[kPacks];
};

template <typename T>
struct RowInMemory {
  static constexpr int kSize = 1;

  __device__ RowInMemory(const Operands<T>& o, int64_t row)
      : columns(o.columns), elements((o.residual == nullptr ? o.x : o.sum) + row * o.columns) {
    if (o.residual == nullptr) return;
    // A thread reads again only what it has stored itself.
    ForRowColumns(columns, [&](int c) {
      const int64_t i = row * o.columns + c;
      StoreGlobalPack(SumOf(LoadPack<1>(o.x + i), LoadPack<1>(o.residual + i)), o.sum + i);
    });
  }
  template <typename F>
  __device__ void ForEach(F f) const {
    ForRowColumns(columns, [&](int c) { f(c, LoadPack<1>(elements + c)); });
  }

  int columns;
  const T* elements;
};

template <bool kRms, typename T>
__global__ void NormRegisters(Operands<T> o) {
  TeamSums<RowSumType<T>, 1> team_sums(SharedMemory<typename TeamSums<RowSumType<T>, 1>::Shared>());
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  NormRow<kRms>(o, row, RowInRegisters<kPackBytes / sizeof(T), T>(o, row), team_sums);
}

template <bool kRms, typename T>
__global__ void __launch_bounds__(kMaxTeamThreads) NormMemory(Operands<T> o) {
  TeamSums<RowSumType<T>, 1> team_sums(SharedMemory<typename TeamSums<RowSumType<T>, 1>::Shared>());
  NormRow<kRms>(o, blockIdx.x, RowInMemory<T>(o, blockIdx.x), team_sums);
}

template <bool kRms, typename T>
void LaunchNorm(const Operands<T>& o, CUstream_st* stream) {
  if (o.rows == 0 || o.columns == 0) return;
  constexpr int kPack = kPackBytes / sizeof(T);
  const bool aligned = HasAlignedRows<T>(o.columns, {o.x, o.residual, o.weight, o.bias, o.sum, o.out});
  // Without common alignment, packs are single elements, and a row needs a wider team.
  const TeamShape team = TeamShapeOf(o.columns, aligned ? kPack : 1, kPacks, kBlockWarps);
  const auto blocks = static_cast<unsigned>((o.rows + team.teams - 1) / team.teams);
  Launch(team.in_registers ? NormRegisters<kRms, T> : NormMemory<kRms, T>, blocks, team.block(),
         sizeof(typename TeamSums<RowSumType<T>, 1>::Shared), stream, o);
}

template <typename T>
Operands<T> OperandsOf(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out,
                       const Tensor& rstd) {
  Operands<T> o = {};
  o.x = input.x.data_as<const T>();
  if (input.residual.defined()) {
    o.residual = input.residual.data_as<const T>();
    o.sum = input.sum.data_as<T>();
  }
  o.weight = weight.data_as<const T>();
  o.out = out.data_as<T>();
  o.rstd = rstd.data_as<double>();
  o.eps = static_cast<double>(eps);
  o.rows = input.x.shape().dim(0);
  o.columns = static_cast<int>(input.x.shape().dim(1));
  o.inverse_columns = 1 / static_cast<double>(o.columns);
  return o;
}

}  // namespace

void CudaLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd, CUstream_st* stream) {
  WithActivationType(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Operands<T> o = OperandsOf<T>(input, weight, eps, out, rstd);
    o.bias = bias.data_as<const T>();
    o.mean = mean.data_as<double>();
    LaunchNorm<false>(o, stream);
  });
}

void CudaRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                 CUstream_st* stream) {
  WithActivationType(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    LaunchNorm<true>(OperandsOf<T>(input, weight, eps, out, rstd), stream);
  });
}

}  // namespace fsdp
