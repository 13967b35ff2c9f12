// SPDX-License-Identifier: Apache-2.0
//
// A warp for each row, four rows to a block: a row of some thousand elements gives each lane a few packs, and the sums
// of a warp need no shared memory and no barrier. Rows are read two or three times (statistics, then output); the later
// reads come from cache. Sums are float32 within a pack and float64 across packs and lanes, in an order that depends on
// the number of columns alone.

#include "fsdp/cuda/block_sum.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_norm.h"
#include "fsdp/nn/cuda/cuda_split.h"

namespace fsdp {
namespace {

constexpr int kRowsPerBlock = 4;

// Calls f(row) for the calling warp's row, if there is one.
template <typename F>
__device__ void ForWarpRow(int64_t rows, F f) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.y;
  if (row < rows) f(row);
}

// Calls f(column) for the first columns of the calling lane's packs.
template <int N, typename F>
__device__ void ForLaneColumns(int64_t columns, F f) {
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * N; c < columns; c += kWarpThreads * N) f(c);
}

// The mean over a row of f's sums over packs: f(column) is a float32 sum of N terms; those are added in float64.
template <int N, typename F>
__device__ double RowMean(int64_t columns, F f) {
  double sum = 0;
  ForLaneColumns<N>(columns, [&](int64_t c) { sum += static_cast<double>(f(c)); });
  return WarpSum(sum) / static_cast<double>(columns);
}

template <typename T>
struct NormOperands {
  const T* grad_out;  // backward's
  const T* x;
  const T* weight;
  const T* bias;  // layer norm's, forward
  T* out;         // or grad_x
  double* mean;   // null for RMS norm
  double* rstd;
  double eps;
  int64_t rows;
  int64_t columns;
};

template <int N, typename T>
__global__ void LayerNormForward(NormOperands<T> o) {
  ForWarpRow(o.rows, [&](int64_t row) {
    const T* x = o.x + row * o.columns;
    const double mean = RowMean<N>(o.columns, [&](int64_t c) {
      const Pack<T, N> xs = LoadPack<N>(x + c);
      float sum = 0;
#pragma unroll
      for (int k = 0; k < N; ++k) sum += Widen<float>(xs.at[k]);
      return sum;
    });
    const CudaSplit m(mean);
    // In a second pass, which does not cancel.
    const double variance = RowMean<N>(o.columns, [&](int64_t c) {
      const Pack<T, N> xs = LoadPack<N>(x + c);
      float sum = 0;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float centered = m.SubtractFrom(Widen<float>(xs.at[k]));
        sum += centered * centered;
      }
      return sum;
    });
    const double rstd = 1 / sqrt(variance + o.eps);
    const CudaSplit r(rstd);
    ForLaneColumns<N>(o.columns, [&](int64_t c) {
      const Pack<T, N> xs = LoadPack<N>(x + c);
      const Pack<T, N> weights = LoadPack<N>(o.weight + c);
      const Pack<T, N> biases = LoadPack<N>(o.bias + c);
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float normed = r.Times(m.SubtractFrom(Widen<float>(xs.at[k])));
        out.at[k] = Round<T>(fmaf(normed, Widen<float>(weights.at[k]), Widen<float>(biases.at[k])));
      }
      StorePack(out, o.out + row * o.columns + c);
    });
    if (threadIdx.x == 0) {
      o.mean[row] = mean;
      o.rstd[row] = rstd;
    }
  });
}

template <int N, typename T>
__global__ void RmsNormForward(NormOperands<T> o) {
  ForWarpRow(o.rows, [&](int64_t row) {
    const T* x = o.x + row * o.columns;
    const double mean_square = RowMean<N>(o.columns, [&](int64_t c) {
      const Pack<T, N> xs = LoadPack<N>(x + c);
      float sum = 0;
#pragma unroll
      for (int k = 0; k < N; ++k) sum += Widen<float>(xs.at[k]) * Widen<float>(xs.at[k]);
      return sum;
    });
    const double rstd = 1 / sqrt(mean_square + o.eps);
    const CudaSplit r(rstd);
    ForLaneColumns<N>(o.columns, [&](int64_t c) {
      const Pack<T, N> xs = LoadPack<N>(x + c);
      const Pack<T, N> weights = LoadPack<N>(o.weight + c);
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        out.at[k] = Round<T>(RoundTo<T>(r.Times(Widen<float>(xs.at[k]))) * Widen<float>(weights.at[k]));
      }
      StorePack(out, o.out + row * o.columns + c);
    });
    if (threadIdx.x == 0) o.rstd[row] = rstd;
  });
}

// With h = (x - mean) rstd and g = grad_out weight:  grad_x = rstd (g - mean(g) - h mean(g h)). RMS norm has no mean,
// of x and so of g, and rounds g to the dtype, as PyTorch's autograd does.
template <bool kRms, int N, typename T>
__global__ void NormBackward(NormOperands<T> o) {
  ForWarpRow(o.rows, [&](int64_t row) {
    const T* x = o.x + row * o.columns;
    const T* grad_out = o.grad_out + row * o.columns;
    const CudaSplit m(kRms ? 0 : o.mean[row]);
    const CudaSplit r(o.rstd[row]);
    // Calls f(k, g, h) for each element of a pack.
    const auto for_pack = [&](int64_t c, auto f) {
      const Pack<T, N> xs = LoadPack<N>(x + c);
      const Pack<T, N> grads = LoadPack<N>(grad_out + c);
      const Pack<T, N> weights = LoadPack<N>(o.weight + c);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float g = Widen<float>(grads.at[k]) * Widen<float>(weights.at[k]);
        f(k, kRms ? RoundTo<T>(g) : g, r.Times(m.SubtractFrom(Widen<float>(xs.at[k]))));
      }
    };
    double sum_g = 0, sum_gh = 0;
    ForLaneColumns<N>(o.columns, [&](int64_t c) {
      float pack_g = 0, pack_gh = 0;
      for_pack(c, [&](int, float g, float h) {
        pack_g += g;
        pack_gh += g * h;
      });
      sum_g += static_cast<double>(pack_g);
      sum_gh += static_cast<double>(pack_gh);
    });
    const auto columns = static_cast<double>(o.columns);
    const CudaSplit mean_g(kRms ? 0 : WarpSum(sum_g) / columns);
    const CudaSplit mean_gh(WarpSum(sum_gh) / columns);
    ForLaneColumns<N>(o.columns, [&](int64_t c) {
      Pack<T, N> out;
      for_pack(c, [&](int k, float g, float h) {
        out.at[k] = Round<T>(r.Times(mean_g.SubtractFrom(g) - mean_gh.Times(h)));
      });
      StorePack(out, o.out + row * o.columns + c);
    });
  });
}

template <typename T>
NormOperands<T> OperandsOf(const Tensor& x, const Tensor& weight, const Tensor& out, const Tensor& rstd) {
  NormOperands<T> o = {};
  o.x = x.data_as<const T>();
  o.weight = weight.data_as<const T>();
  o.out = out.data_as<T>();
  o.rstd = rstd.data_as<double>();
  o.rows = x.shape().dim(0);
  o.columns = x.shape().dim(1);
  return o;
}

// Launches `packed` if every row of every operand is aligned to a pack, else `single`.
template <typename T>
void LaunchRows(const NormOperands<T>& o, void (*packed)(NormOperands<T>), void (*single)(NormOperands<T>),
                CUstream_st* stream) {
  if (o.rows == 0 || o.columns == 0) return;
  const void* operands[] = {o.grad_out, o.x, o.weight, o.bias, o.out};  // a null one is aligned
  bool aligned = o.columns % (kPackBytes / sizeof(T)) == 0;
  for (const void* operand : operands) aligned = aligned && IsAligned(operand, kPackBytes);
  const auto blocks = static_cast<unsigned>((o.rows + kRowsPerBlock - 1) / kRowsPerBlock);
  Launch(aligned ? packed : single, blocks, dim3(kWarpThreads, kRowsPerBlock), 0, stream, o);
}

template <typename T>
constexpr int kPack = kPackBytes / sizeof(T);

}  // namespace

void CudaLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd, CUstream_st* stream) {
  WithActivationType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    NormOperands<T> o = OperandsOf<T>(x, weight, out, rstd);
    o.bias = bias.data_as<const T>();
    o.mean = mean.data_as<double>();
    o.eps = static_cast<double>(eps);
    LaunchRows(o, LayerNormForward<kPack<T>, T>, LayerNormForward<1, T>, stream);
  });
}

void CudaLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& grad_x, CUstream_st* stream) {
  WithActivationType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    NormOperands<T> o = OperandsOf<T>(x, weight, grad_x, rstd);
    o.grad_out = grad_out.data_as<const T>();
    o.mean = mean.data_as<double>();
    LaunchRows(o, NormBackward<false, kPack<T>, T>, NormBackward<false, 1, T>, stream);
  });
}

void CudaRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                 CUstream_st* stream) {
  WithActivationType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    NormOperands<T> o = OperandsOf<T>(x, weight, out, rstd);
    o.eps = static_cast<double>(eps);
    LaunchRows(o, RmsNormForward<kPack<T>, T>, RmsNormForward<1, T>, stream);
  });
}

void CudaRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, CUstream_st* stream) {
  WithActivationType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    NormOperands<T> o = OperandsOf<T>(x, weight, grad_x, rstd);
    o.grad_out = grad_out.data_as<const T>();
    LaunchRows(o, NormBackward<true, kPack<T>, T>, NormBackward<true, 1, T>, stream);
  });
}

}  // namespace fsdp
