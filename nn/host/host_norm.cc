// SPDX-License-Identifier: Apache-2.0
//
// Layer norm and RMS norm, row by row; the formulas are at LayerOps. Three passes over a row forward for layer norm
// (mean, variance, output), two for RMS norm; backward two (sums, gradient). A row fits the first-level cache, so
// passes are cheap, and a second pass for the variance does not cancel as mean(x^2) - mean(x)^2 does.
//
// Sums along a row are float64 (DoubleSum), one for each lane, and the lanes are added at the end, so targets of
// different width differ in the last bits of a float64. Sums over rows, for the gradients of weight and bias, go
// through ColumnSums as the rows pass.
#include "fsdp/nn/host/host_norm.h"

#include <cmath>

#include "fsdp/nn/host/host_column_sums.h"
#include "fsdp/nn/host/kernel_grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host/host_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

// A statistic of a row, a float64, as a sum of two float32. Rounded to one, it would be off by the same amount in every
// lane, and errors that agree do not average out in the matrix products that follow: gradients then lose a decimal
// digit.
struct Split {
  explicit Split(double value) : high(static_cast<float>(value)), low(static_cast<float>(value - high)) {}
  float high;
  float low;
};

HWY_INLINE FloatVec Subtract(FloatTag d, FloatVec v, Split s) {
  return hn::Sub(hn::Sub(v, hn::Set(d, s.high)), hn::Set(d, s.low));
}

HWY_INLINE FloatVec Multiply(FloatTag d, FloatVec v, Split s) {
  return hn::MulAdd(v, hn::Set(d, s.high), hn::Mul(v, hn::Set(d, s.low)));
}

HWY_INLINE double MeanOf(const DoubleSum& sum, int64_t n) { return sum.Total() / static_cast<double>(n); }

template <typename T>
double RowMean(const T* x, int64_t n) {
  const FloatTag d;
  DoubleSum sum;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR { sum.Add(LoadUpTo(d, x + i, count)); });
  return MeanOf(sum, n);
}

// The biased variance, in a second pass, which does not cancel.
template <typename T>
double RowVariance(const T* x, Split mean, int64_t n) {
  const FloatTag d;
  DoubleSum sum;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec centered = Subtract(d, LoadUpTo(d, x + i, count), mean);
    // Lanes past the end hold 0 - mean; they do not count.
    sum.Add(hn::IfThenElseZero(hn::FirstN(d, count), hn::Mul(centered, centered)));
  });
  return MeanOf(sum, n);
}

template <typename T>
void LayerForwardRow(const T* x, const T* weight, const T* bias, Split mean, Split rstd, T* out, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec normed = Multiply(d, Subtract(d, LoadUpTo(d, x + i, count), mean), rstd);
    StoreUpTo(d, hn::MulAdd(normed, LoadUpTo(d, weight + i, count), LoadUpTo(d, bias + i, count)), out + i, count);
  });
}

// With h = (x - mean) rstd and g = grad_out weight:  grad_x = rstd (g - mean(g) - h mean(g h)). The column sums, if
// requested, gain grad_out h and grad_out.
template <typename T>
void LayerBackwardRow(const T* grad_out, const T* x, const T* weight, Split mean, Split rstd, T* grad_x,
                      float* weight_sums, float* bias_sums, int64_t n) {
  const FloatTag d;
  DoubleSum sum_g;
  DoubleSum sum_gh;
  const auto normed = [&](int64_t i, size_t count)
                          HWY_ATTR { return Multiply(d, Subtract(d, LoadUpTo(d, x + i, count), mean), rstd); };
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec dy = LoadUpTo(d, grad_out + i, count);  // 0 past the end, and so is g
    const FloatVec h = normed(i, count);
    const FloatVec g = hn::Mul(dy, LoadUpTo(d, weight + i, count));
    sum_g.Add(g);
    sum_gh.Add(hn::Mul(g, h));
    if (weight_sums != nullptr) {
      StoreUpTo(d, hn::MulAdd(dy, h, LoadUpTo(d, weight_sums + i, count)), weight_sums + i, count);
    }
    if (bias_sums != nullptr) StoreUpTo(d, hn::Add(dy, LoadUpTo(d, bias_sums + i, count)), bias_sums + i, count);
  });
  // Two passes: the first needs all of the row for the means that the second subtracts.
  const Split mean_g(MeanOf(sum_g, n));
  const Split mean_gh(MeanOf(sum_gh, n));
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec g = hn::Mul(LoadUpTo(d, grad_out + i, count), LoadUpTo(d, weight + i, count));
    const FloatVec centered = hn::Sub(Subtract(d, g, mean_g), Multiply(d, normed(i, count), mean_gh));
    StoreUpTo(d, Multiply(d, centered, rstd), grad_x + i, count);
  });
}

template <typename T>
void LayerForwardRows(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                      const Tensor& mean, const Tensor& rstd) {
  const int64_t n = weight.numel();
  for (int64_t r = 0; r < mean.numel(); ++r) {
    const T* row = x.data_as<const T>() + r * n;
    const double row_mean = RowMean(row, n);
    const double row_rstd = 1 / std::sqrt(RowVariance(row, Split(row_mean), n) + static_cast<double>(eps));
    mean.data_as<double>()[r] = row_mean;
    rstd.data_as<double>()[r] = row_rstd;
    LayerForwardRow(row, weight.data_as<const T>(), bias.data_as<const T>(), Split(row_mean), Split(row_rstd),
                    out.data_as<T>() + r * n, n);
  }
}

// `sums` has n columns for the weight and n for the bias; an unwanted half gains nothing.
template <typename T>
void LayerBackwardRows(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                       const Tensor& rstd, const Tensor& grad_x, bool wants_weight, bool wants_bias, ColumnSums& sums) {
  const int64_t n = weight.numel();
  for (int64_t r = 0; r < mean.numel(); ++r) {
    LayerBackwardRow(grad_out.data_as<const T>() + r * n, x.data_as<const T>() + r * n, weight.data_as<const T>(),
                     Split(mean.data_as<const double>()[r]), Split(rstd.data_as<const double>()[r]),
                     grad_x.data_as<T>() + r * n, wants_weight ? sums.partial() : nullptr,
                     wants_bias ? sums.partial() + n : nullptr, n);
    sums.RowDone();
  }
}

void LayerForwardKernel(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                        const Tensor& mean, const Tensor& rstd) {
  WithElementType(x.dtype(), [&](auto element) HWY_ATTR {
    LayerForwardRows<decltype(element)>(x, weight, bias, eps, out, mean, rstd);
  });
}

void LayerBackwardKernel(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& rstd, const Tensor& grad_x, bool wants_weight, bool wants_bias,
                         ColumnSums& sums) {
  WithElementType(x.dtype(), [&](auto element) HWY_ATTR {
    LayerBackwardRows<decltype(element)>(grad_out, x, weight, mean, rstd, grad_x, wants_weight, wants_bias, sums);
  });
}

template <typename T>
double RowMeanSquare(const T* x, int64_t n) {
  const FloatTag d;
  DoubleSum sum;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec v = LoadUpTo(d, x + i, count);  // 0 past the end
    sum.Add(hn::Mul(v, v));
  });
  return MeanOf(sum, n);
}

template <typename T>
void RmsForwardRow(const T* x, const T* weight, Split rstd, T* out, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec normed = RoundTo<T>(d, Multiply(d, LoadUpTo(d, x + i, count), rstd));
    StoreUpTo(d, hn::Mul(normed, LoadUpTo(d, weight + i, count)), out + i, count);
  });
}

// With h = x rstd and g = grad_out weight:  grad_x = rstd (g - h mean(g h)). The column sums, if requested, gain
// grad_out h. PyTorch's autograd rounds g, h and grad_out h to the dtype on the way.
template <typename T>
void RmsBackwardRow(const T* grad_out, const T* x, const T* weight, Split rstd, T* grad_x, float* weight_sums,
                    int64_t n) {
  const FloatTag d;
  DoubleSum sum_gh;
  const auto weighted = [&](int64_t i, size_t count) HWY_ATTR {
    return RoundTo<T>(d, hn::Mul(LoadUpTo(d, grad_out + i, count), LoadUpTo(d, weight + i, count)));
  };
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec h = Multiply(d, LoadUpTo(d, x + i, count), rstd);
    sum_gh.Add(hn::Mul(weighted(i, count), h));
    if (weight_sums == nullptr) return;
    const FloatVec product = RoundTo<T>(d, hn::Mul(LoadUpTo(d, grad_out + i, count), RoundTo<T>(d, h)));
    StoreUpTo(d, hn::Add(product, LoadUpTo(d, weight_sums + i, count)), weight_sums + i, count);
  });
  const Split mean_gh(MeanOf(sum_gh, n));
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec h = Multiply(d, LoadUpTo(d, x + i, count), rstd);
    const FloatVec centered = hn::Sub(weighted(i, count), Multiply(d, h, mean_gh));
    StoreUpTo(d, Multiply(d, centered, rstd), grad_x + i, count);
  });
}

template <typename T>
void RmsForwardRows(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd) {
  const int64_t n = weight.numel();
  for (int64_t r = 0; r < rstd.numel(); ++r) {
    const T* row = x.data_as<const T>() + r * n;
    const double row_rstd = 1 / std::sqrt(RowMeanSquare(row, n) + static_cast<double>(eps));
    rstd.data_as<double>()[r] = row_rstd;
    RmsForwardRow(row, weight.data_as<const T>(), Split(row_rstd), out.data_as<T>() + r * n, n);
  }
}

template <typename T>
void RmsBackwardRows(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                     const Tensor& grad_x, bool wants_weight, ColumnSums& sums) {
  const int64_t n = weight.numel();
  for (int64_t r = 0; r < rstd.numel(); ++r) {
    RmsBackwardRow(grad_out.data_as<const T>() + r * n, x.data_as<const T>() + r * n, weight.data_as<const T>(),
                   Split(rstd.data_as<const double>()[r]), grad_x.data_as<T>() + r * n,
                   wants_weight ? sums.partial() : nullptr, n);
    sums.RowDone();
  }
}

void RmsForwardKernel(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd) {
  WithElementType(x.dtype(),
                  [&](auto element) HWY_ATTR { RmsForwardRows<decltype(element)>(x, weight, eps, out, rstd); });
}

void RmsBackwardKernel(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                       const Tensor& grad_x, bool wants_weight, ColumnSums& sums) {
  WithElementType(x.dtype(), [&](auto element) HWY_ATTR {
    RmsBackwardRows<decltype(element)>(grad_out, x, weight, rstd, grad_x, wants_weight, sums);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(LayerForwardKernel);
HWY_EXPORT(LayerBackwardKernel);
HWY_EXPORT(RmsForwardKernel);
HWY_EXPORT(RmsBackwardKernel);

void HostLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd) {
  HWY_DYNAMIC_DISPATCH(LayerForwardKernel)(x, weight, bias, eps, out, mean, rstd);
}

void HostLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& grad_x, const ParameterGrad& grad_weight,
                           const ParameterGrad& grad_bias, int threads) {
  const int64_t n = weight.numel();
  ColumnSums sums = ParallelColumnSums(threads, mean.numel(), 2 * n, [&](Interval rows, ColumnSums& piece) {
    HWY_DYNAMIC_DISPATCH(LayerBackwardKernel)
    (RowPiece(grad_out, rows, n), RowPiece(x, rows, n), weight, Piece(mean, rows), Piece(rstd, rows),
     RowPiece(grad_x, rows, n), grad_weight.defined(), grad_bias.defined(), piece);
  });
  if (grad_weight.defined()) sums.AddTo(grad_weight);
  if (grad_bias.defined()) sums.AddTo(grad_bias, n);
}

void HostRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd) {
  HWY_DYNAMIC_DISPATCH(RmsForwardKernel)(x, weight, eps, out, rstd);
}

void HostRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, const ParameterGrad& grad_weight, int threads) {
  const int64_t n = weight.numel();
  ColumnSums sums = ParallelColumnSums(threads, rstd.numel(), n, [&](Interval rows, ColumnSums& piece) {
    HWY_DYNAMIC_DISPATCH(RmsBackwardKernel)
    (RowPiece(grad_out, rows, n), RowPiece(x, rows, n), weight, Piece(rstd, rows), RowPiece(grad_x, rows, n),
     grad_weight.defined(), piece);
  });
  if (grad_weight.defined()) sums.AddTo(grad_weight);
}

}  // namespace fsdp
#endif  // HWY_ONCE
