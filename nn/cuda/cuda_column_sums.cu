// SPDX-License-Identifier: Apache-2.0
//
// Two kernels. Partial: the rows are cut into runs (splits), a block for each run and each 32 packs of columns; its 8
// rows of threads take every eighth row of the run, add at most 32 of them in float32, those sums in float64, and the 8
// totals in order. AddSplits: a thread for each column adds the runs in order and then the old gradient.
//
// Threads of one warp read neighbouring columns of one row, so loads are wide and aligned. The number of runs depends
// on the number of rows alone (never on the GPU), and with it the order of every sum.

#include <algorithm>

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/cuda/shared_memory.h"
#include "fsdp/nn/cuda/cuda_column_sums.h"
#include "fsdp/nn/cuda/cuda_split.h"

namespace fsdp {
namespace {

// A block is kLanes threads wide, each with a pack of columns, and kRowThreads high; it sums one run of rows.
constexpr int kLanes = 32;
constexpr int kRowThreads = 8;
constexpr int kRowsPerPartial = 32;
constexpr int64_t kRowsPerSplit = 64;

int64_t RowSplits(int64_t rows) {
  return std::clamp<int64_t>((rows + kRowsPerSplit - 1) / kRowsPerSplit, 1, kMaxRowSplits);
}

// The terms that Partial sums, kSums for each element. Add adds those of the N elements from element i, of row `row`.

template <typename T>
struct PlainTerm {
  static constexpr int kSums = 1;
  const T* grad_out;
  template <int N>
  __device__ void Add(int64_t, int64_t i, float (&sums)[kSums][N]) const {
    const Pack<T, N> pack = LoadPack<N>(grad_out + i);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[0][k] += Widen<float>(pack.at[k]);
  }
};

// The terms of a norm's parameters: sums[0] is grad_weight's, sums[1] grad_bias's.
template <typename T>
struct NormTerm {
  static constexpr int kSums = 2;
  const T* grad_out;
  const T* x;
  const double* mean;  // null for RMS norm
  const double* rstd;
  template <int N>
  __device__ void Add(int64_t row, int64_t i, float (&sums)[kSums][N]) const {
    const Pack<T, N> grads = LoadPack<N>(grad_out + i);
    const Pack<T, N> xs = LoadPack<N>(x + i);
    const CudaSplit m(mean != nullptr ? mean[row] : 0);
    const CudaSplit r(rstd[row]);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float grad = Widen<float>(grads.at[k]);
      const float h = r.Times(m.SubtractFrom(Widen<float>(xs.at[k])));
      sums[0][k] += mean != nullptr ? grad * h : RoundTo<T>(grad * RoundTo<T>(h));
      sums[1][k] += grad;
    }
  }
};

template <int kColumns>
struct BlockColumns {
  double of[kRowThreads][kColumns];
};

// partial[sum][split][column] = the sum over the rows of split number blockIdx.y.
template <int N, typename Term>
__global__ void Partial(Term term, int64_t rows, int64_t columns, double* partial) {
  auto& shared = SharedMemory<BlockColumns<kLanes * N>>();
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x) * N;
  const int64_t split_rows = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * split_rows;
  const int64_t end = begin + split_rows < rows ? begin + split_rows : rows;
  double totals[Term::kSums][N] = {};
  if (first < columns) {
    for (int64_t row = begin + threadIdx.y; row < end;) {
      float sums[Term::kSums][N] = {};
      for (int r = 0; r < kRowsPerPartial && row < end; ++r, row += kRowThreads) {
        term.Add(row, row * columns + first, sums);
      }
#pragma unroll
      for (int s = 0; s < Term::kSums; ++s) {
#pragma unroll
        for (int k = 0; k < N; ++k) totals[s][k] += static_cast<double>(sums[s][k]);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < Term::kSums; ++s) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; ++k) shared.of[threadIdx.y][threadIdx.x * N + k] = totals[s][k];
    __syncthreads();
    double* out = partial + (static_cast<int64_t>(s) * gridDim.y + blockIdx.y) * columns;
    for (int c = static_cast<int>(threadIdx.y * kLanes + threadIdx.x); c < kLanes * N; c += kLanes * kRowThreads) {
      const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes * N + c;
      if (column >= columns) break;
      double sum = 0;
      for (int y = 0; y < kRowThreads; ++y) sum += shared.of[y][c];
      out[column] = sum;
    }
  }
}

template <typename T>
__global__ void AddSplits(const double* partial, int64_t splits, int64_t columns, T* grad) {
  ForEach(columns, [&](int64_t column) {
    double sum = 0;
    for (int64_t split = 0; split < splits; ++split) sum += partial[split * columns + column];
    grad[column] = Round<T>(Widen<float>(grad[column]) + static_cast<float>(sum));
  });
}

// N is 1 where rows do not all begin aligned to a pack.
template <int N, typename Term>
void LaunchPartial(const Term& term, int64_t rows, int64_t columns, double* workspace, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>((columns + kLanes * N - 1) / (kLanes * N)),
                  static_cast<unsigned>(RowSplits(rows)));
  Launch(Partial<N, Term>, grid, dim3(kLanes, kRowThreads), sizeof(BlockColumns<kLanes * N>), stream, term, rows,
         columns, workspace);
}

template <typename T>
void LaunchAddSplits(const double* partial, int64_t rows, const Tensor& grad, CUstream_st* stream) {
  Launch(AddSplits<T>, Blocks(grad.numel()), kThreads, 0, stream, partial, RowSplits(rows), grad.numel(),
         grad.data_as<T>());
}

template <typename T>
constexpr int kPack = kPackBytes / sizeof(T);

template <typename T>
bool HasAlignedRows(const Tensor& t, int64_t columns) {
  return columns % kPack<T> == 0 && IsAligned(t.data(), kPackBytes);
}

}  // namespace

int64_t ColumnSumsBytes(int64_t rows, int64_t columns) {
  return RowSplits(rows) * columns * static_cast<int64_t>(sizeof(double));
}

void CudaBiasBackward(const Tensor& grad_out, const Tensor& grad_bias, double* workspace, CUstream_st* stream) {
  const int64_t columns = grad_bias.numel();
  if (columns == 0) return;
  const int64_t rows = grad_out.numel() / columns;
  WithActivationType(grad_out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const PlainTerm<T> term{grad_out.data_as<const T>()};
    if (HasAlignedRows<T>(grad_out, columns)) {
      LaunchPartial<kPack<T>>(term, rows, columns, workspace, stream);
    } else {
      LaunchPartial<1>(term, rows, columns, workspace, stream);
    }
    LaunchAddSplits<T>(workspace, rows, grad_bias, stream);
  });
}

void CudaNormParameterGrads(const Tensor& grad_out, const Tensor& x, const double* mean, const double* rstd,
                            const Tensor& grad_weight, const Tensor& grad_bias, double* workspace,
                            CUstream_st* stream) {
  const int64_t columns = x.shape().dim(1);
  const int64_t rows = x.shape().dim(0);
  if (columns == 0) return;
  WithActivationType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const NormTerm<T> term{grad_out.data_as<const T>(), x.data_as<const T>(), mean, rstd};
    if (HasAlignedRows<T>(grad_out, columns) && HasAlignedRows<T>(x, columns)) {
      LaunchPartial<kPack<T>>(term, rows, columns, workspace, stream);
    } else {
      LaunchPartial<1>(term, rows, columns, workspace, stream);
    }
    if (grad_weight.defined()) LaunchAddSplits<T>(workspace, rows, grad_weight, stream);
    if (grad_bias.defined()) LaunchAddSplits<T>(workspace + RowSplits(rows) * columns, rows, grad_bias, stream);
  });
}

}  // namespace fsdp
