// SPDX-License-Identifier: Apache-2.0
//
// Two kernels. SumRuns: the rows are cut into runs, a block for each run and each 32 packs of columns; its 8 rows of
// threads take every eighth row of the run, with kRowsInFlight loads in flight at a time, and add their rows in
// float32; the 8 totals are added in order. AddPartialSums: a block for 32 columns, whose 32 rows of threads take every
// 32nd run; their totals, in float64, are added in order and then to the old gradient.
//
// Threads of one warp read neighbouring columns of one row, so loads are wide and aligned. The number of runs depends
// on the number of rows only (never on the GPU), and with it the order of every sum.

#include <algorithm>

#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_column_sums.h"

namespace fsdp {
namespace {

// A block of SumRuns is kLanes threads wide, each with a pack of columns, and kRowThreads high; it sums one run.
constexpr int kLanes = 32;
constexpr int kRowThreads = 8;
constexpr int kRowsInFlight = 8;
// Rows of a run: few enough for float32 sums, and enough that the runs are a small part of the memory traffic.
constexpr int64_t kMinRunRows = 64;
constexpr int64_t kMaxRunRows = 32 * kRowThreads;
constexpr int64_t kRuns = 128;  // between those limits

// A multiple of kMinRunRows.
int64_t RunRows(int64_t rows) {
  const int64_t multiples = (rows + kRuns * kMinRunRows - 1) / (kRuns * kMinRunRows);
  return std::clamp<int64_t>(multiples * kMinRunRows, kMinRunRows, kMaxRunRows);
}

int64_t NumRuns(int64_t rows) { return std::max<int64_t>((rows + RunRows(rows) - 1) / RunRows(rows), 1); }

template <int kColumns>
struct BlockColumns {
  float of[kRowThreads][kColumns];
};

template <typename T>
struct Rows {
  const T* data;
  int64_t count;
  int64_t stride;
};

// partial[run, column] = the sum over the rows of the run. Block b has tile b % tiles, 32 packs wide, of run b / tiles.
// The last pack of a padded row may reach into the padding; the sums of those columns are not written.
template <int N, typename T>
__global__ void __launch_bounds__(kLanes* kRowThreads, 4)
    SumRuns(Rows<T> grad_out, int64_t run_rows, int64_t columns, float* partial) {
  auto& shared = SharedMemory<BlockColumns<kLanes * N>>();
  const auto tiles = static_cast<unsigned>((columns + kLanes * N - 1) / (kLanes * N));
  const int64_t run = blockIdx.x / tiles;
  const int64_t tile_begin = static_cast<int64_t>(blockIdx.x % tiles) * kLanes * N;
  const int64_t first = tile_begin + static_cast<int64_t>(threadIdx.x) * N;
  const int64_t begin = run * run_rows;
  const int64_t end = begin + run_rows < grad_out.count ? begin + run_rows : grad_out.count;
  float sums[N] = {};
  const auto add = [&](const Pack<T, N>& pack) {
    float values[N];
    WidenPack(pack, values);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] += values[k];
  };
  if (first < columns) {
    const T* column = grad_out.data + first;
    int64_t row = begin + threadIdx.y;
    for (; row + (kRowsInFlight - 1) * kRowThreads < end; row += kRowsInFlight * kRowThreads) {
      Pack<T, N> packs[kRowsInFlight];
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        packs[r] = LoadPack<N>(column + (row + r * kRowThreads) * grad_out.stride);
      }
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) add(packs[r]);
    }
#pragma unroll 1
    for (; row < end; row += kRowThreads) add(LoadPack<N>(column + row * grad_out.stride));
  }
#pragma unroll
  for (int k = 0; k < N; ++k) shared.of[threadIdx.y][threadIdx.x * N + k] = sums[k];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.y * kLanes + threadIdx.x); c < kLanes * N; c += kLanes * kRowThreads) {
    const int64_t column = tile_begin + c;
    if (column >= columns) break;
    float sum = 0;
    for (int y = 0; y < kRowThreads; ++y) sum += shared.of[y][c];
    partial[run * columns + column] = sum;
  }
}

template <int N, typename T>
void LaunchSumRuns(const Tensor& grad_out, float* partial, CUstream_st* stream) {
  const int64_t rows = grad_out.shape().dim(0);
  const int64_t columns = grad_out.shape().dim(1);
  const int64_t tiles = (columns + kLanes * N - 1) / (kLanes * N);
  Launch(SumRuns<N, T>, static_cast<unsigned>(tiles * NumRuns(rows)), dim3(kLanes, kRowThreads),
         sizeof(BlockColumns<kLanes * N>), stream, Rows<T>{grad_out.data_as<const T>(), rows, grad_out.row_stride()},
         RunRows(rows), columns, partial);
}

// Columns and threads in a column of a block of AddPartialSums.
constexpr int kSumColumns = 32;
constexpr int kSumThreads = 32;

struct ColumnTotals {
  double of[kSumThreads][kSumColumns];
};

template <typename T>
struct Gradients {
  T* of[2];  // null: not wanted
  bool accumulate[2];
};

// Gradient number blockIdx.y.
template <typename T>
__global__ void __launch_bounds__(kSumColumns* kSumThreads)
    AddPartialSums(const float* partial, int64_t runs, int64_t columns, Gradients<T> gradients) {
  T* grad = blockIdx.y == 0 ? gradients.of[0] : gradients.of[1];
  const bool accumulate = blockIdx.y == 0 ? gradients.accumulate[0] : gradients.accumulate[1];
  if (grad == nullptr) return;
  auto& shared = SharedMemory<ColumnTotals>();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  double total = 0;
  if (column < columns) {
    const float* sums = partial + blockIdx.y * runs * columns + column;
#pragma unroll 4
    for (int64_t run = threadIdx.y; run < runs; run += kSumThreads) total += static_cast<double>(sums[run * columns]);
  }
  shared.of[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  double sum = 0;
#pragma unroll
  for (int y = 0; y < kSumThreads; ++y) sum += shared.of[y][threadIdx.x];
  // A replaced gradient has the bits of a sum with 0.
  const float before = accumulate ? Widen<float>(grad[column]) : 0;
  grad[column] = Round<T>(before + static_cast<float>(sum));
}

}  // namespace

int64_t ColumnSumsBytes(int64_t rows, int64_t columns) {
  return NumRuns(rows) * columns * static_cast<int64_t>(sizeof(float));
}

void CudaBiasBackward(const Tensor& grad_out, const ParameterGrad& grad_bias, float* workspace, CUstream_st* stream) {
  const int64_t columns = grad_bias.grad.numel();
  if (columns == 0) return;
  const int64_t rows = grad_out.numel() / columns;
  WithActivationType(grad_out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    if (grad_out.row_stride() % kPack == 0 && IsAligned(grad_out.data(), kPackBytes)) {
      LaunchSumRuns<kPack, T>(grad_out, workspace, stream);
    } else {
      LaunchSumRuns<1, T>(grad_out, workspace, stream);
    }
  });
  CudaAddPartialSums(workspace, NumRuns(rows), columns, {grad_bias, ParameterGrad()}, stream);
}

void CudaAddPartialSums(const float* partial, int64_t runs, int64_t columns, const std::array<ParameterGrad, 2>& grads,
                        CUstream_st* stream) {
  const DType dtype = grads[grads[0].defined() ? 0 : 1].grad.dtype();
  WithActivationType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Gradients<T> gradients = {};
    for (int g = 0; g < 2; ++g) {
      if (grads[g].defined()) gradients.of[g] = grads[g].grad.template data_as<T>();
      gradients.accumulate[g] = grads[g].accumulate;
    }
    const dim3 grid(static_cast<unsigned>((columns + kSumColumns - 1) / kSumColumns), grads[1].defined() ? 2 : 1);
    Launch(AddPartialSums<T>, grid, dim3(kSumColumns, kSumThreads), sizeof(ColumnTotals), stream, partial, runs,
           columns, gradients);
  });
}

}  // namespace fsdp
