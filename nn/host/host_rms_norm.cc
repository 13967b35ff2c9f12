// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/host/host_rms_norm.h"

#include <cmath>

#include "fsdp/nn/host/host_column_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host/host_rms_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "fsdp/nn/host/split-inl.h"
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

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
void ForwardRow(const T* x, const T* weight, Split rstd, T* out, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec normed = RoundTo<T>(d, Multiply(d, LoadUpTo(d, x + i, count), rstd));
    StoreUpTo(d, hn::Mul(normed, LoadUpTo(d, weight + i, count)), out + i, count);
  });
}

// With h = x rstd and g = grad_out weight:  grad_x = rstd (g - h mean(g h)). The column sums, where wanted, gain
// grad_out h. PyTorch's autograd rounds g, h and grad_out h to the dtype on the way.
template <typename T>
void BackwardRow(const T* grad_out, const T* x, const T* weight, Split rstd, T* grad_x, float* weight_sums, int64_t n) {
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
void ForwardRows(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd) {
  const int64_t n = weight.numel();
  for (int64_t r = 0; r < rstd.numel(); ++r) {
    const T* row = x.data_as<const T>() + r * n;
    const double row_rstd = 1 / std::sqrt(RowMeanSquare(row, n) + static_cast<double>(eps));
    rstd.data_as<double>()[r] = row_rstd;
    ForwardRow(row, weight.data_as<const T>(), Split(row_rstd), out.data_as<T>() + r * n, n);
  }
}

// `weight_sums` may be null.
template <typename T>
void BackwardRows(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                  const Tensor& grad_x, ColumnSums* weight_sums) {
  const int64_t n = weight.numel();
  for (int64_t r = 0; r < rstd.numel(); ++r) {
    BackwardRow(grad_out.data_as<const T>() + r * n, x.data_as<const T>() + r * n, weight.data_as<const T>(),
                Split(rstd.data_as<const double>()[r]), grad_x.data_as<T>() + r * n,
                weight_sums == nullptr ? nullptr : weight_sums->partial(), n);
    if (weight_sums != nullptr) weight_sums->RowDone();
  }
}

void RmsForwardKernel(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd) {
  if (x.dtype() == DType::kBFloat16) return ForwardRows<uint16_t>(x, weight, eps, out, rstd);
  ForwardRows<float>(x, weight, eps, out, rstd);
}

void RmsBackwardKernel(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                       const Tensor& grad_x, ColumnSums* weight_sums) {
  if (x.dtype() == DType::kBFloat16) {
    return BackwardRows<uint16_t>(grad_out, x, weight, rstd, grad_x, weight_sums);
  }
  BackwardRows<float>(grad_out, x, weight, rstd, grad_x, weight_sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(RmsForwardKernel);
HWY_EXPORT(RmsBackwardKernel);

void HostRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd) {
  HWY_DYNAMIC_DISPATCH(RmsForwardKernel)(x, weight, eps, out, rstd);
}

void HostRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, const Tensor& grad_weight) {
  ColumnSums weight_sums(grad_weight.defined() ? weight.numel() : 0);
  HWY_DYNAMIC_DISPATCH(RmsBackwardKernel)
  (grad_out, x, weight, rstd, grad_x, grad_weight.defined() ? &weight_sums : nullptr);
  if (grad_weight.defined()) weight_sums.AddTo(grad_weight);
}

}  // namespace fsdp
#endif  // HWY_ONCE
