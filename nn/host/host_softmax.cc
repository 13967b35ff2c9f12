// SPDX-License-Identifier: Apache-2.0
//
// Rows of scores to probabilities and back. Row r of a block sees its first `visible` columns; the rest of the row is
// written as 0, so that the products that follow may read whole rows. With m = max(scale s) and l = sum(e^(scale s -
// m)):
//
//   statistics      m and 1 / l                        kept for backward
//   probabilities   p = e^(scale s - m) * (1 / l)      the same arithmetic forward and backward: the same bits
//   gradient        ds = scale p (dp - sum(p dp))
//
// Under kOnline one statistic is kept, m + log(l), and forward leaves the division by l to the product with the values.
//
// l and sum(p dp) are float64 sums, since each is used by every element of its row. The template parameters are the
// types of elements that values are rounded to on the way (AttentionRounding; float: not at all), chosen once for a
// block and not for each element.
#include "fsdp/nn/host/host_softmax.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host/host_softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "fsdp/nn/host/exp-inl.h"
#include "fsdp/nn/host/softmax-inl.h"
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

// Eager attention computes q k^T and the scaling as two operations, each of which rounds.
template <typename Rounded>
HWY_INLINE FloatVec Scaled(FloatTag d, FloatVec score, float scale) {
  return RoundTo<Rounded>(d, hn::Mul(RoundTo<Rounded>(d, score), hn::Set(d, scale)));
}

template <typename Rounded>
void StatisticsRows(const CausalBlock& block, const float* scores, float* statistics) {
  const FloatTag d;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* row = scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    // Rounding keeps the order, so the largest score has the largest rounded one.
    const FloatVec maximum = Scaled<Rounded>(d, hn::Set(d, RowMaximum(row, visible)), block.scale);
    DoubleSum sum;
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec e = Exp(d, hn::Sub(Scaled<Rounded>(d, LoadUpTo(d, row + i, count), block.scale), maximum));
      sum.Add(hn::IfThenElseZero(hn::FirstN(d, count), e));
    });
    statistics[2 * r] = hn::GetLane(maximum);
    statistics[2 * r + 1] = static_cast<float>(1 / sum.Total());
  }
}

// The probabilities before they are divided by their sum, and both sums. `rounded` may be null.
template <typename T>
void OnlineRows(const CausalBlock& block, float* scores, const OnlineSums& sums, T* rounded) {
  const FloatTag d;
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    const float maximum = RowMaximum(row, visible) * block.scale;
    DoubleSum sum;
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec scaled = hn::Mul(LoadUpTo(d, row + i, count), hn::Set(d, block.scale));
      const FloatVec p = Exp(d, hn::Sub(scaled, hn::Set(d, maximum)));
      sum.Add(hn::IfThenElseZero(hn::FirstN(d, count), p));
      StoreUpTo(d, p, row + i, count);
      if (rounded != nullptr) StoreUpTo(d, p, rounded + r * block.cols + i, count);
    });
    sums.inverse_sum[r] = static_cast<float>(1 / sum.Total());
    sums.log_sum_exp[r] = static_cast<float>(static_cast<double>(maximum) + std::log(sum.Total()));
    std::fill(row + visible, row + block.cols, 0.0f);
    if (rounded != nullptr) std::fill(rounded + r * block.cols + visible, rounded + (r + 1) * block.cols, T{0});
  }
}

// `rounded` may be null. Rows of kOnline have one statistic, log_sum_exp: p is e^(scale s - log_sum_exp).
template <typename Rounded, typename T>
void ProbabilitiesRows(const CausalBlock& block, float* scores, const float* statistics, T* rounded) {
  const FloatTag d;
  const bool online = block.rounding == AttentionRounding::kOnline;
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    const FloatVec maximum = hn::Set(d, online ? statistics[r] : statistics[2 * r]);
    const FloatVec inverse_sum = hn::Set(d, online ? 1.0f : statistics[2 * r + 1]);
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec scaled = Scaled<Rounded>(d, LoadUpTo(d, row + i, count), block.scale);
      const FloatVec p = hn::Mul(Exp(d, hn::Sub(scaled, maximum)), inverse_sum);
      StoreUpTo(d, p, row + i, count);
      if (rounded != nullptr) StoreUpTo(d, p, rounded + r * block.cols + i, count);
    });
    std::fill(row + visible, row + block.cols, 0.0f);
    if (rounded != nullptr) std::fill(rounded + r * block.cols + visible, rounded + (r + 1) * block.cols, T{0});
  }
}

template <typename Grad, typename Probability, typename T>
void ScoresBackward(const CausalBlock& block, const float* probabilities, const float* grad, const float* row_sums,
                    T* grad_scores) {
  const FloatTag d;
  for (int64_t r = 0; r < block.rows; ++r) {
    T* out = grad_scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    const auto p = [&](int64_t i, size_t count) HWY_ATTR {
      return RoundTo<Probability>(d, LoadUpTo(d, probabilities + r * block.cols + i, count));
    };
    const auto g = [&](int64_t i, size_t count)
                       HWY_ATTR { return RoundTo<Grad>(d, LoadUpTo(d, grad + r * block.cols + i, count)); };
    const auto sum_of_products = [&]() HWY_ATTR {
      DoubleSum products;
      ForEachVector(visible,
                    [&](int64_t i, size_t count) HWY_ATTR { products.Add(hn::Mul(p(i, count), g(i, count))); });
      return static_cast<float>(products.Total());
    };
    const FloatVec mean = hn::Set(d, row_sums != nullptr ? row_sums[r] : sum_of_products());
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec grad_scaled = RoundTo<Grad>(d, hn::Mul(p(i, count), hn::Sub(g(i, count), mean)));
      StoreUpTo(d, hn::Mul(grad_scaled, hn::Set(d, block.scale)), out + i, count);
    });
    std::fill(out + visible, out + block.cols, T{0});
  }
}

void OnlineKernel(const CausalBlock& block, float* scores, const OnlineSums& sums, void* rounded) {
  WithElementType(block.dtype, [&](auto element) HWY_ATTR {
    OnlineRows(block, scores, sums, static_cast<decltype(element)*>(rounded));
  });
}

void RowProductsKernel(const RowPairs& pairs, float* sums) {
  WithElementType(pairs.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    const FloatTag d;
    for (int64_t r = 0; r < pairs.rows; ++r) {
      const T* a = static_cast<const T*>(pairs.a) + r * pairs.stride;
      const T* b = static_cast<const T*>(pairs.b) + r * pairs.stride;
      DoubleSum sum;
      ForEachVector(pairs.cols, [&](int64_t i, size_t count) HWY_ATTR {
        sum.Add(hn::Mul(LoadUpTo(d, a + i, count), LoadUpTo(d, b + i, count)));
      });
      sums[r] = static_cast<float>(sum.Total());
    }
  });
}

void StatisticsKernel(const CausalBlock& block, const float* scores, float* statistics) {
  if (block.rounding == AttentionRounding::kFused) return StatisticsRows<float>(block, scores, statistics);
  WithElementType(block.dtype,
                  [&](auto element) HWY_ATTR { StatisticsRows<decltype(element)>(block, scores, statistics); });
}

void ProbabilitiesKernel(const CausalBlock& block, float* scores, const float* statistics, void* rounded) {
  WithElementType(block.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    if (block.rounding == AttentionRounding::kFused || block.rounding == AttentionRounding::kOnline) {
      return ProbabilitiesRows<float>(block, scores, statistics, static_cast<T*>(rounded));
    }
    ProbabilitiesRows<T>(block, scores, statistics, static_cast<T*>(rounded));
  });
}

void ScoresBackwardKernel(const CausalBlock& block, const float* probabilities, const float* grad,
                          const float* row_sums, void* grad_scores) {
  WithElementType(block.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    auto* out = static_cast<T*>(grad_scores);
    switch (block.rounding) {
      case AttentionRounding::kFused:
      case AttentionRounding::kOnline:
        return ScoresBackward<float, float>(block, probabilities, grad, row_sums, out);
      case AttentionRounding::kEagerFloat32Softmax:
        return ScoresBackward<T, float>(block, probabilities, grad, row_sums, out);
      case AttentionRounding::kEager:
        return ScoresBackward<T, T>(block, probabilities, grad, row_sums, out);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(OnlineKernel);
HWY_EXPORT(RowProductsKernel);
HWY_EXPORT(StatisticsKernel);
HWY_EXPORT(ProbabilitiesKernel);
HWY_EXPORT(ScoresBackwardKernel);

void HostSoftmaxStatistics(const CausalBlock& block, const float* scores, float* statistics) {
  HWY_DYNAMIC_DISPATCH(StatisticsKernel)(block, scores, statistics);
}

void HostOnlineProbabilities(const CausalBlock& block, float* scores, const OnlineSums& sums, void* rounded) {
  HWY_DYNAMIC_DISPATCH(OnlineKernel)(block, scores, sums, rounded);
}

void HostRowProducts(const RowPairs& pairs, float* sums) { HWY_DYNAMIC_DISPATCH(RowProductsKernel)(pairs, sums); }

void HostProbabilities(const CausalBlock& block, float* scores, const float* statistics, void* rounded) {
  HWY_DYNAMIC_DISPATCH(ProbabilitiesKernel)(block, scores, statistics, rounded);
}

void HostProbabilitiesBackward(const CausalBlock& block, const float* probabilities, const float* grad,
                               const float* row_sums, void* grad_scores) {
  HWY_DYNAMIC_DISPATCH(ScoresBackwardKernel)(block, probabilities, grad, row_sums, grad_scores);
}

}  // namespace fsdp
#endif  // HWY_ONCE
