// SPDX-License-Identifier: Apache-2.0
//
// Backward, two kernels. The first has a fixed run of rows for each block, and its teams take the rows of the run in
// turn. A team loads a row of x and of the output's gradient once, sums over the row, writes the gradient of x, and
// adds the row's terms to the sums for weight and bias, which it keeps in registers by column. At the end the teams'
// sums are added in a tree and written as the block's. The second kernel (cuda_column_sums.h) adds the blocks' sums.
//
// With h = (x - mean) rstd and g = grad_out weight:  grad_x = rstd (g - mean(g)
// - h mean(g h)). RMS norm has no mean, of x and so of g; it rounds g, h and
// grad_out h to the dtype on the way, as PyTorch's autograd does.

#include <algorithm>

#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_column_sums.h"
#include "fsdp/nn/cuda/cuda_norm.h"
#include "fsdp/nn/cuda/cuda_row_team.h"
#include "fsdp/nn/cuda/cuda_split.h"

namespace fsdp {
namespace {

// Warps of a block. The rows are cut into about kBlocks runs, twice the multiprocessors of an H100, for which a block
// each leaves registers; a team sums at most kRowsPerTeam rows in float32.
constexpr int kBlockWarps = 8;
constexpr int kBlockThreads = kBlockWarps * kWarpThreads;
constexpr int kBlocksPerProcessor = 2;
constexpr int64_t kBlocks = 264;
constexpr int64_t kRowsPerTeam = 32;

// Rows of a block of `teams` teams, a multiple of `teams`.
int64_t RowsPerBlock(int64_t rows, int teams) {
  const int64_t rounds = (rows + kBlocks * teams - 1) / (kBlocks * teams);
  return std::clamp<int64_t>(rounds, 1, kRowsPerTeam) * teams;
}

int64_t NumBlocks(int64_t rows, int teams) {
  const int64_t per_block = RowsPerBlock(rows, teams);
  return (rows + per_block - 1) / per_block;
}

template <typename T>
struct Operands {
  const T* grad_out;
  const T* x;
  const T* weight;
  const T* grad_residual;  // may be null
  const double* mean;      // null for RMS norm
  const double* rstd;
  T* grad_x;
  float* partial;  // [2, blocks, columns], weight then bias; null if neither's
                   // gradient is wanted
  double inverse_columns;
  int64_t rows;
  int columns;
  int64_t rows_per_block;
};

// A row's statistics and the values that depend on them, element by element.
template <bool kRms, typename T>
struct RowMath {
  using Sum = RowSumType<T>;
  // sum[0] is for g h; sum[1], which RMS norm lacks, for g.
  static constexpr int kSums = kRms ? 1 : 2;

  __device__ RowMath(const Operands<T>& o, int64_t row)
      : mean(kRms ? 0 : static_cast<Sum>(o.mean[row])), rstd(static_cast<Sum>(o.rstd[row])) {}

  __device__ float G(float grad, float weight) const { return kRms ? RoundTo<T>(grad * weight) : grad * weight; }
  __device__ float H(float x) const { return rstd.Times(mean.SubtractFrom(x)); }
  // A term of the weight's gradient.
  __device__ float WeightTerm(float grad, float h) const { return kRms ? RoundTo<T>(grad * RoundTo<T>(h)) : grad * h; }
  // Not yet rounded.
  __device__ float GradX(float g, float h, const RowStatistic<Sum>& mean_gh, const RowStatistic<Sum>& mean_g) const {
    return rstd.Times(mean_g.SubtractFrom(g) - mean_gh.Times(h));
  }

  RowStatistic<Sum> mean;
  RowStatistic<Sum> rstd;
};

// Packs of a row that a thread keeps, with their sums over rows: as many as fit 128 registers, which leaves two blocks
// to a multiprocessor.
template <bool kRms>
constexpr int kPacks = kRms ? 4 : 3;

// The sums over rows of the calling thread's columns, in registers: of[0] is weight's, of[1], which RMS norm lacks,
// bias's.
template <bool kRms, int N>
struct ColumnSums {
  static constexpr int kSums = kRms ? 1 : 2;
  static constexpr int kFloats = kSums * kPacks<kRms> * N;

  // Calls f(i, sum) for each of kFloats.
  template <typename F>
  __device__ void ForEach(F f) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll
      for (int p = 0; p < kPacks<kRms>; ++p) {
#pragma unroll
        for (int k = 0; k < N; ++k) f((s * kPacks<kRms> + p) * N + k, of[s][p][k]);
      }
    }
  }

  // Adds the teams' sums up, in a tree, into the sums of team 0. `shared` has kFloats for each thread of half the
  // teams.
  __device__ void AddTeams(float* shared) {
    for (unsigned teams = blockDim.y; teams > 1; teams /= 2) {
      const unsigned half = teams / 2;
      float* slots = shared + (threadIdx.y % half) * kFloats * blockDim.x + threadIdx.x;
      if (threadIdx.y >= half && threadIdx.y < teams) {
        ForEach([&](int i, float& sum) { slots[i * blockDim.x] = sum; });
      }
      __syncthreads();
      if (threadIdx.y < half) {
        ForEach([&](int i, float& sum) { sum += slots[i * blockDim.x]; });
      }
      __syncthreads();
    }
  }

  __device__ void Store(float* partial, int columns) const {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      float* sums = partial + (static_cast<int64_t>(s) * gridDim.x + blockIdx.x) * columns;
      ForRowPacks<N, kPacks<kRms>>([&](int p, int c) {
        if (c >= columns) return;
#pragma unroll
        for (int k = 0; k < N; k += 4) {
          const float(&from)[N] = of[s][p];
          StoreGlobalPack(Pack<float, 4>{from[k], from[k + 1], from[k + 2], from[k + 3]}, sums + c + k);
        }
      });
    }
  }

  float of[kSums][kPacks<kRms>][N] = {};
};

// The packs of one row in registers, and one row's work.
template <bool kRms, int N, typename T>
struct Row {
  using Math = RowMath<kRms, T>;
  using Sum = RowSumType<T>;

  // Zeros if the row is beyond the last; they add nothing to any sum.
  __device__ Row(const Operands<T>& o, int64_t row, int64_t end)
      : begin(row * o.columns), columns(row < end ? o.columns : 0) {
    LoadRowPacks(o.x + begin, columns, xs);
    LoadRowPacks(o.grad_out + begin, columns, grads);
    if (o.grad_residual != nullptr) LoadRowPacks(o.grad_residual + begin, columns, residuals);
  }

  // Calls f(k, grad, g, h) for the elements of pack p, from column c.
  template <typename F>
  __device__ void ForPack(const Operands<T>& o, const Math& math, int p, int c, F f) const {
    float x[N], grad[N], weight[N];
    WidenPack(xs[p], x);
    WidenPack(grads[p], grad);
    WidenPack(LoadRowPack<N>(o.weight, c, columns), weight);
#pragma unroll
    for (int k = 0; k < N; ++k) f(k, grad[k], math.G(grad[k], weight[k]), math.H(x[k]));
  }

  // Adds the row's sums of g h and of g to `sums`.
  __device__ void AddTo(const Operands<T>& o, const Math& math, Sum (&sums)[Math::kSums]) const {
    ForRowPacks<N, kPacks<kRms>>([&](int p, int c) {
      float sum_gh = 0, sum_g = 0;
      ForPack(o, math, p, c, [&](int, float, float g, float h) {
        sum_gh += g * h;
        sum_g += g;
      });
      sums[0] += static_cast<Sum>(sum_gh);
      if constexpr (!kRms) sums[1] += static_cast<Sum>(sum_g);
    });
  }

  // With the means of g h and of g: stores grad_x, and adds the row's terms to `column_sums`.
  __device__ void Finish(const Operands<T>& o, const Math& math, const RowStatistic<Sum>& mean_gh,
                         const RowStatistic<Sum>& mean_g, ColumnSums<kRms, N>& column_sums) const {
    ForRowPacks<N, kPacks<kRms>>([&](int p, int c) {
      float out[N];
      ForPack(o, math, p, c, [&](int k, float grad, float g, float h) {
        column_sums.of[0][p][k] += math.WeightTerm(grad, h);
        if constexpr (!kRms) column_sums.of[1][p][k] += grad;
        out[k] = math.GradX(g, h, mean_gh, mean_g);
      });
      if (o.grad_residual != nullptr) {
        float residual[N];
        WidenPack(residuals[p], residual);
#pragma unroll
        for (int k = 0; k < N; ++k) out[k] = RoundTo<T>(out[k]) + residual[k];
      }
      StoreRowPack(RoundPack<T>(out), o.grad_x + begin, c, columns);
    });
  }

  int64_t begin;  // of the row
  int columns;
  Pack<T, N> xs[kPacks<kRms>], grads[kPacks<kRms>], residuals[kPacks<kRms>];
};

template <bool kRms, typename T>
using RowTeamSums = TeamSums<RowSumType<T>, RowMath<kRms, T>::kSums>;

template <bool kRms, int N, typename T>
struct RegistersShared {
  typename RowTeamSums<kRms, T>::Shared team_sums;
  alignas(16) float column_sums[1];  // of AddTeams
};

// Rows in registers.
template <bool kRms, typename T>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor) BackwardRegisters(Operands<T> o) {
  constexpr int N = kPackBytes / sizeof(T);
  using Math = RowMath<kRms, T>;
  using Sum = RowSumType<T>;
  auto& shared = SharedMemory<RegistersShared<kRms, N, T>>();
  RowTeamSums<kRms, T> team_sums(shared.team_sums);
  ColumnSums<kRms, N> column_sums;
  const int64_t begin = blockIdx.x * o.rows_per_block;
  const int64_t end = begin + o.rows_per_block < o.rows ? begin + o.rows_per_block : o.rows;
  for (int64_t first = begin; first < end; first += blockDim.y) {
    const int64_t row = first + threadIdx.y;
    const Row<kRms, N, T> values(o, row, end);
    const Math math(o, row < end ? row : begin);
    Sum sums[Math::kSums] = {};
    values.AddTo(o, math, sums);
    team_sums.AddUp(sums);
    const auto inverse_columns = static_cast<Sum>(o.inverse_columns);
    values.Finish(o, math, RowStatistic<Sum>(sums[0] * inverse_columns),
                  RowStatistic<Sum>(kRms ? 0 : sums[Math::kSums - 1] * inverse_columns), column_sums);
  }
  if (o.partial == nullptr) return;
  column_sums.AddTeams(shared.column_sums);
  if (threadIdx.y == 0) column_sums.Store(o.partial, o.columns);
}

// Rows in memory, a block for each row of the run; the sums over rows are in memory too, each column its thread's.
template <bool kRms, typename T>
__global__ void __launch_bounds__(kMaxTeamThreads) BackwardMemory(Operands<T> o) {
  using Math = RowMath<kRms, T>;
  using Sum = RowSumType<T>;
  RowTeamSums<kRms, T> team_sums(SharedMemory<typename RowTeamSums<kRms, T>::Shared>());
  const int64_t begin = blockIdx.x * o.rows_per_block;
  const int64_t end = begin + o.rows_per_block < o.rows ? begin + o.rows_per_block : o.rows;
  float* weight_sums = o.partial + static_cast<int64_t>(blockIdx.x) * o.columns;
  float* bias_sums = weight_sums + static_cast<int64_t>(gridDim.x) * o.columns;
  for (int64_t row = begin; row < end; ++row) {
    const Math math(o, row);
    Sum sums[Math::kSums] = {};
    ForRowColumns(o.columns, [&](int c) {
      const float grad = Widen<float>(o.grad_out[row * o.columns + c]);
      const float g = math.G(grad, Widen<float>(o.weight[c])), h = math.H(Widen<float>(o.x[row * o.columns + c]));
      sums[0] += static_cast<Sum>(g * h);
      if constexpr (!kRms) sums[1] += static_cast<Sum>(g);
      if (o.partial == nullptr) return;
      const float weight_term = math.WeightTerm(grad, h);
      weight_sums[c] = row == begin ? weight_term : weight_sums[c] + weight_term;
      if constexpr (!kRms) bias_sums[c] = row == begin ? grad : bias_sums[c] + grad;
    });
    team_sums.AddUp(sums);
    const auto inverse_columns = static_cast<Sum>(o.inverse_columns);
    const RowStatistic<Sum> mean_gh(sums[0] * inverse_columns);
    const RowStatistic<Sum> mean_g(kRms ? 0 : sums[Math::kSums - 1] * inverse_columns);
    ForRowColumns(o.columns, [&](int c) {
      const int64_t i = row * o.columns + c;
      float grad = math.GradX(math.G(Widen<float>(o.grad_out[i]), Widen<float>(o.weight[c])),
                              math.H(Widen<float>(o.x[i])), mean_gh, mean_g);
      if (o.grad_residual != nullptr) grad = RoundTo<T>(grad) + Widen<float>(o.grad_residual[i]);
      o.grad_x[i] = Round<T>(grad);
    });
  }
}

template <bool kRms, typename T>
void LaunchBackward(Operands<T> o, const NormGrads& grads, CUstream_st* stream) {
  constexpr int kPack = kPackBytes / sizeof(T);
  const bool aligned = HasAlignedRows<T>(o.columns, {o.grad_out, o.x, o.weight, o.grad_residual, o.grad_x});
  const TeamShape team = TeamShapeOf(o.columns, aligned ? kPack : 1, kPacks<kRms>, kBlockWarps);
  o.rows_per_block = RowsPerBlock(o.rows, team.teams);
  const int64_t blocks = NumBlocks(o.rows, team.teams);
  const auto grid = static_cast<unsigned>(blocks);
  if (team.in_registers) {
    const size_t column_sums =
        ColumnSums<kRms, kPack>::kFloats * sizeof(float) * kWarpThreads * team.warps * team.teams / 2;
    Launch(BackwardRegisters<kRms, T>, grid, team.block(), sizeof(RegistersShared<kRms, kPack, T>) + column_sums,
           stream, o);
  } else {
    Launch(BackwardMemory<kRms, T>, grid, team.block(), sizeof(typename RowTeamSums<kRms, T>::Shared), stream, o);
  }
  if (o.partial != nullptr) CudaAddPartialSums(o.partial, blocks, o.columns, {grads.weight, grads.bias}, stream);
}

}  // namespace

// Blocks of one team have the fewest rows.
int64_t NormBackwardBytes(int64_t rows, int64_t columns) {
  return 2 * NumBlocks(rows, 1) * columns * static_cast<int64_t>(sizeof(float));
}

void CudaNormBackward(const CudaNormBackwardOperands& operands, const NormGrads& grads, float* workspace,
                      CUstream_st* stream) {
  const int64_t columns = operands.x.shape().dim(1);
  if (columns == 0) return;
  const bool has_sums = grads.weight.defined() || grads.bias.defined();
  if (operands.x.numel() == 0) {  // a sum of nothing
    if (has_sums) CudaAddPartialSums(workspace, 0, columns, {grads.weight, grads.bias}, stream);
    return;
  }
  WithActivationType(operands.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Operands<T> o = {};
    o.grad_out = operands.grad_out.data_as<const T>();
    o.x = operands.x.data_as<const T>();
    o.weight = operands.weight.data_as<const T>();
    o.rstd = operands.rstd.data_as<const double>();
    o.grad_x = grads.x.data_as<T>();
    if (operands.grad_residual.defined()) o.grad_residual = operands.grad_residual.data_as<const T>();
    if (has_sums) o.partial = workspace;
    o.rows = operands.x.shape().dim(0);
    o.columns = static_cast<int>(columns);
    o.inverse_columns = 1 / static_cast<double>(o.columns);
    if (operands.mean.defined()) {
      o.mean = operands.mean.data_as<const double>();
      LaunchBackward<false>(o, grads, stream);
    } else {
      LaunchBackward<true>(o, grads, stream);
    }
  });
}

}  // namespace fsdp
