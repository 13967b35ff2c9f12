// SPDX-License-Identifier: Apache-2.0
//
// A block of 512 threads for each row. Pack p of a row always belongs to thread p % 512, at whatever address the row
// begins, and a last, partly filled pack is filled with -inf: so the order of the sums depends only on the number of
// columns, and bits do not depend on alignment.
//
//   1. Each thread loads its packs, four at a time, and keeps a maximum and a sum of exponentials relative to it (an
//      online softmax); the threads' pairs are then brought to the row's maximum and added. Sums are float32, in trees:
//      a thread adds about a hundred exponentials of a row of 50,000.
//   2. For the gradient each thread visits its packs again. If the row fits into shared memory, it kept them there, and
//      the row is read from memory once. Otherwise the second visit reads it again.
//
// A barrier is between 1. and 2., and in 2. each element is read and written by one thread, so 2. may write its results
// over the logits. Rows that are not aligned are loaded element by element in 1., and in 2. neighbouring threads take
// neighbouring elements, as stores need it. A second kernel of one block adds the rows' losses in a fixed order.

#include <algorithm>
#include <type_traits>

#include "fsdp/cuda/block_sum.h"
#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/fast_math.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/cuda/refuse_value.h"
#include "fsdp/nn/cuda/cuda_cross_entropy.h"
#include "fsdp/nn/cuda/cuda_grad_factor.h"
#include "fsdp/nn/ops/device_scaled_loss.h"

namespace fsdp {
namespace {

constexpr int kRowThreads = 512;
constexpr int kLossThreads = 1024;
constexpr int kInFlight = 4;
constexpr int kElementsInFlight = 8;

template <typename T>
constexpr int kPack = kPackBytes / sizeof(T);

template <typename T>
using RowPack = Pack<T, kPack<T>>;

// The matrices of a call, rows at any distance. The gradient is scaled by `factor`.
template <typename T>
struct Rows {
  const T* logits;
  int64_t stride;
  int columns;
  const int32_t* targets;
  float* statistics;
  T* grad;  // null: forward only
  int64_t grad_stride;
  GradFactor factor;
};

struct Losses {
  double* of_rows;
  KernelRefusal* refusal;
};

// In 16 bits the error of the fast exponential, which is smallest for the terms that matter in a sum, is far below the
// rounding of a logit.
template <typename T>
__device__ float Exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return FastExp2(x * kLog2E);
  }
}

template <bool kAligned, typename T>
__device__ RowPack<T> LoadRowPack(const T* data) {
  if constexpr (kAligned) {
    return LoadPack<kPack<T>>(data);
  } else {
    RowPack<T> pack;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) pack.at[k] = data[k];
    return pack;
  }
}

// Calls f(pack, number of the pack) for the calling thread's packs of row `x`, in ascending order.
template <bool kAligned, typename T, typename F>
__device__ void ForRowPacks(const T* x, int columns, F f) {
  const int packs = columns / kPack<T>;
  for (int first = static_cast<int>(threadIdx.x); first < packs; first += kInFlight * kRowThreads) {
    RowPack<T> loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int p = first + i * kRowThreads;
      if (p < packs) loaded[i] = LoadRowPack<kAligned>(x + static_cast<int64_t>(p) * kPack<T>);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int p = first + i * kRowThreads;
      if (p < packs) f(loaded[i], p);
    }
  }
  if (columns % kPack<T> == 0 || static_cast<int>(threadIdx.x) != packs % kRowThreads) return;
  RowPack<T> rest;
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) {
    const int i = packs * kPack<T> + k;
    rest.at[k] = i < columns ? x[i] : Round<T>(-INFINITY);
  }
  f(rest, packs);
}

// The largest of some x, and the sum of e^(x - maximum), in one pass, so the sum is scaled when the maximum grows.
// While there is no x above -inf, the sum is relative to 0: all its terms are 0, or NaN.
template <typename T>
struct OnlineSum {
  __device__ void Add(const RowPack<T>& pack) {
    float xs[kPack<T>];
    WidenPack(pack, xs);
    float pack_maximum = xs[0];
#pragma unroll
    for (int k = 1; k < kPack<T>; ++k) pack_maximum = fmaxf(pack_maximum, xs[k]);
    if (pack_maximum > maximum) {
      sum *= Exp<T>(maximum - pack_maximum);
      maximum = pack_maximum;
    }
    const float base = maximum == -INFINITY ? 0 : maximum;
    float pack_sum = 0;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) pack_sum += Exp<T>(xs[k] - base);
    sum += pack_sum;
  }

  float maximum = -INFINITY;
  float sum = 0;
};

// The values that the gradient of a row depends on, besides its logits.
struct RowStatistics {
  float maximum;
  float inverse_sum;
  int target;
  float factor;
};

// The gradient of one logit, `x`, which is the target's or not.
template <typename T>
__device__ T Gradient(float x, bool is_target, const RowStatistics& row) {
  const float e = Exp<T>(x - row.maximum);
  return Round<T>(is_target ? (e * row.inverse_sum - 1) * row.factor : e * (row.inverse_sum * row.factor));
}

// Writes the gradient of pack number `p` of a row whose gradient is aligned.
template <typename T>
__device__ void WriteGradient(const Rows<T>& rows, const RowPack<T>& pack, int p, const RowStatistics& row) {
  float xs[kPack<T>];
  WidenPack(pack, xs);
  RowPack<T> grad;
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) grad.at[k] = Gradient<T>(xs[k], false, row);
  const int place = row.target - p * kPack<T>;
  if (place >= 0 && place < kPack<T>) {
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      if (k == place) grad.at[k] = Gradient<T>(xs[k], true, row);
    }
  }
  T* const to = rows.grad + blockIdx.x * rows.grad_stride + static_cast<int64_t>(p) * kPack<T>;
  if ((p + 1) * kPack<T> <= rows.columns) return StorePack(grad, to);
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) {
    if (p * kPack<T> + k < rows.columns) to[k] = grad.at[k];
  }
}

// Writes the gradient of a row that is not aligned: neighbouring threads write neighbouring elements, one by one. The
// elements are the same, whatever thread writes them.
template <typename T>
__device__ void WriteGradientByElements(const Rows<T>& rows, const RowStatistics& row) {
  const T* const x = rows.logits + blockIdx.x * rows.stride;
  T* const grad = rows.grad + blockIdx.x * rows.grad_stride;
  for (int first = static_cast<int>(threadIdx.x); first < rows.columns; first += kElementsInFlight * kRowThreads) {
    T loaded[kElementsInFlight];
#pragma unroll
    for (int k = 0; k < kElementsInFlight; ++k) {
      const int i = first + k * kRowThreads;
      if (i < rows.columns) loaded[k] = x[i];
    }
#pragma unroll
    for (int k = 0; k < kElementsInFlight; ++k) {
      const int i = first + k * kRowThreads;
      if (i < rows.columns) grad[i] = Gradient<T>(Widen<float>(loaded[k]), i == row.target, row);
    }
  }
}

// Writes the gradient of the calling block's row.
template <bool kAligned, typename T>
__device__ void WriteRowGradient(const Rows<T>& rows, const RowStatistics& row) {
  if constexpr (kAligned) {
    ForRowPacks<true>(rows.logits + blockIdx.x * rows.stride, rows.columns,
                      [&](const RowPack<T>& pack, int p) { WriteGradient(rows, pack, p, row); });
  } else {
    WriteGradientByElements(rows, row);
  }
}

struct alignas(kPackBytes) RowShared {
  WarpSums<float, kRowThreads> sums;
  float maxima[kRowThreads / kWarpThreads];
};

// The block's target logit, in every thread of the block.
__device__ float BlockMax(float value, RowShared& shared) {
  value = WarpMax(value);
  if (threadIdx.x % kWarpThreads == 0) shared.maxima[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  float maximum = shared.maxima[0];
#pragma unroll
  for (int warp = 1; warp < kRowThreads / kWarpThreads; ++warp) maximum = fmaxf(maximum, shared.maxima[warp]);
  return maximum;
}

// The loss of the calling block's row, by one thread. `target_logit` belongs to a target that is a class.
template <typename T>
__device__ void WriteLoss(const Rows<T>& rows, const Losses& losses, float maximum, float sum, float target_logit) {
  const int64_t row = blockIdx.x;
  rows.statistics[2 * row] = maximum;
  rows.statistics[2 * row + 1] = 1 / sum;
  const int32_t target = rows.targets[row];
  if (target < 0 || target >= rows.columns) {
    RefuseValue(losses.refusal, {0, KernelRefusal::kTarget, target, row, gridDim.x, rows.columns});
    losses.of_rows[row] = static_cast<double>(NAN);
    return;
  }
  losses.of_rows[row] =
      log(static_cast<double>(sum)) - (static_cast<double>(target_logit) - static_cast<double>(maximum));
}

// Forward and, with a gradient, backward of a row. With kKept the row's packs are kept in shared memory behind
// RowShared.
template <bool kAligned, bool kKept, typename T>
__global__ void __launch_bounds__(kRowThreads, 2) Visit(Rows<T> rows, Losses losses) {
  auto& shared = SharedMemory<RowShared>();
  auto* const kept = reinterpret_cast<RowPack<T>*>(&shared + 1);
  const int64_t row = blockIdx.x;
  const T* x = rows.logits + row * rows.stride;
  const int32_t target = rows.targets[row];
  // The target logit is read before any thread writes a gradient over it.
  float target_logit = 0;
  if (threadIdx.x == 0 && target >= 0 && target < rows.columns) target_logit = Widen<float>(x[target]);

  OnlineSum<T> own;
  ForRowPacks<kAligned>(x, rows.columns, [&](const RowPack<T>& pack, int p) {
    if constexpr (kKept) kept[p] = pack;
    own.Add(pack);
  });
  const float maximum = BlockMax(own.maximum, shared);
  const float sum = BlockSum<kRowThreads>(own.sum * Exp<T>(own.maximum - maximum), shared.sums);
  if (threadIdx.x == 0) WriteLoss(rows, losses, maximum, sum, target_logit);
  if (rows.grad == nullptr) return;

  const RowStatistics statistics = {maximum, 1 / sum, target, rows.factor.Get()};
  if constexpr (kKept) {
    for (int p = static_cast<int>(threadIdx.x); p * kPack<T> < rows.columns; p += kRowThreads) {
      const RowPack<T> pack = kept[p];  // one wide load
      WriteGradient(rows, pack, p, statistics);
    }
  } else {
    WriteRowGradient<kAligned>(rows, statistics);
  }
}

// The gradient from the statistics of forward. `grad` may be the logits.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kRowThreads, 2) Backward(Rows<T> rows) {
  const int64_t row = blockIdx.x;
  WriteRowGradient<kAligned>(
      rows, {rows.statistics[2 * row], rows.statistics[2 * row + 1], rows.targets[row], rows.factor.Get()});
}

__global__ void __launch_bounds__(kLossThreads) MeanLoss(const double* row_losses, int64_t rows, float* loss) {
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kLossThreads) sum += row_losses[row];
  sum = BlockSum<kLossThreads>(sum, SharedMemory<WarpSums<double, kLossThreads>>());
  if (threadIdx.x == 0) *loss = static_cast<float>(sum / static_cast<double>(rows));
}

template <typename T>
Rows<T> RowsOf(const Tensor& logits, const Tensor& targets, const Tensor& statistics) {
  return {logits.data_as<const T>(),
          logits.row_stride(),
          static_cast<int>(logits.shape().dim(1)),
          targets.data_as<const int32_t>(),
          statistics.data_as<float>(),
          nullptr,
          0,
          {}};
}

template <typename T>
void SetGradient(Rows<T>& rows, const Tensor& grad, const GradFactor& factor) {
  rows.grad = grad.data_as<T>();
  rows.grad_stride = grad.row_stride();
  rows.factor = factor;
}

template <typename T>
bool HasAlignedRows(const Tensor& t) {
  return t.row_stride() % kPack<T> == 0 && IsAligned(t.data(), kPackBytes);
}

// Shared memory that a block may have on the current device; 0 if the query fails.
size_t MaxSharedBytes() {
  int device = 0;
  int nbytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&nbytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) return 0;
  return static_cast<size_t>(nbytes);
}

template <typename T>
void LaunchVisit(const CrossEntropyOperands& operands, const Rows<T>& rows, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(operands.logits.shape().dim(0));
  const Losses losses = {operands.row_losses, operands.refusal};
  const size_t row_bytes = (static_cast<size_t>(rows.columns) + kPack<T> - 1) / kPack<T> * kPackBytes;
  if (!HasAlignedRows<T>(operands.logits)) {
    Launch(Visit<false, false, T>, blocks, kRowThreads, sizeof(RowShared), stream, rows, losses);
  } else if (rows.grad == nullptr || sizeof(RowShared) + row_bytes > MaxSharedBytes()) {
    Launch(Visit<true, false, T>, blocks, kRowThreads, sizeof(RowShared), stream, rows, losses);
  } else {
    Launch(Visit<true, true, T>, blocks, kRowThreads, sizeof(RowShared) + row_bytes, stream, rows, losses);
  }
}

void LaunchMeanLoss(const CrossEntropyOperands& operands, CUstream_st* stream) {
  Launch(MeanLoss, 1, kLossThreads, sizeof(WarpSums<double, kLossThreads>), stream, operands.row_losses,
         operands.logits.shape().dim(0), operands.loss.data_as<float>());
}

}  // namespace

void CudaCrossEntropy(const CrossEntropyOperands& operands, CUstream_st* stream) {
  WithActivationType(operands.logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (operands.logits.shape().dim(0) == 0) return;
    LaunchVisit(operands, RowsOf<T>(operands.logits, operands.targets, operands.statistics), stream);
  });
  LaunchMeanLoss(operands, stream);
}

void CudaCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, CUstream_st* stream) {
  if (logits.numel() == 0) return;
  WithActivationType(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Rows<T> rows = RowsOf<T>(logits, targets, statistics);
    SetGradient(rows, grad_logits, FactorOf(scale, grad_logits));
    const auto blocks = static_cast<unsigned>(logits.shape().dim(0));
    const bool aligned = HasAlignedRows<T>(logits) && HasAlignedRows<T>(grad_logits);
    Launch(aligned ? Backward<true, T> : Backward<false, T>, blocks, kRowThreads, 0, stream, rows);
  });
}

namespace {

void VisitWithGradient(const CrossEntropyOperands& operands, const GradFactor& factor, CUstream_st* stream) {
  WithActivationType(operands.logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (operands.logits.shape().dim(0) == 0) return;
    Rows<T> rows = RowsOf<T>(operands.logits, operands.targets, operands.statistics);
    SetGradient(rows, operands.logits, factor);
    LaunchVisit(operands, rows, stream);
  });
  LaunchMeanLoss(operands, stream);
}

}  // namespace

void CudaCrossEntropyWithGradient(const CrossEntropyOperands& operands, float scale, CUstream_st* stream) {
  VisitWithGradient(operands, FactorOf(scale, operands.logits), stream);
}

void CudaCrossEntropyWithGradient(const CrossEntropyOperands& operands, const DeviceScale& scale, CUstream_st* stream) {
  VisitWithGradient(operands, FactorOf(scale, operands.logits), stream);
}

}  // namespace fsdp
