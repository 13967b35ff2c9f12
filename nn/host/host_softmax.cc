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
// l and sum(p dp) are float64 sums, since each is used by every element of its row. The template parameters say which
// values are rounded to bfloat16 on the way (AttentionRounding), chosen once for a block and not for each element.
#include "fsdp/nn/host/host_softmax.h"

#include <algorithm>

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

// `v` as a bfloat16 would hold it, where `kRounded`.
template <bool kRounded>
HWY_INLINE FloatVec RoundIf(FloatTag d, FloatVec v) {
  if constexpr (kRounded) {
    return RoundTo<uint16_t>(d, v);
  } else {
    return v;
  }
}

// Eager attention makes two operations of q k^T and the scaling, each of which rounds.
template <bool kRounded>
HWY_INLINE FloatVec Scaled(FloatTag d, FloatVec score, float scale) {
  return RoundIf<kRounded>(d, hn::Mul(RoundIf<kRounded>(d, score), hn::Set(d, scale)));
}

template <bool kRounded>
void StatisticsRows(const CausalBlock& block, const float* scores, float* statistics) {
  const FloatTag d;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* row = scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    // Rounding keeps the order, so the largest score has the largest rounded one.
    const FloatVec maximum = Scaled<kRounded>(d, hn::Set(d, RowMaximum(row, visible)), block.scale);
    DoubleSum sum;
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec e = Exp(d, hn::Sub(Scaled<kRounded>(d, LoadUpTo(d, row + i, count), block.scale), maximum));
      sum.Add(hn::IfThenElseZero(hn::FirstN(d, count), e));
    });
    statistics[2 * r] = hn::GetLane(maximum);
    statistics[2 * r + 1] = static_cast<float>(1 / sum.Total());
  }
}

template <bool kRounded>
void ProbabilitiesRows(const CausalBlock& block, float* scores, const float* statistics, uint16_t* rounded) {
  const FloatTag d;
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    const FloatVec maximum = hn::Set(d, statistics[2 * r]);
    const FloatVec inverse_sum = hn::Set(d, statistics[2 * r + 1]);
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec scaled = Scaled<kRounded>(d, LoadUpTo(d, row + i, count), block.scale);
      const FloatVec p = hn::Mul(Exp(d, hn::Sub(scaled, maximum)), inverse_sum);
      StoreUpTo(d, p, row + i, count);
      if (rounded != nullptr) StoreUpTo(d, p, rounded + r * block.cols + i, count);
    });
    std::fill(row + visible, row + block.cols, 0.0f);
    if (rounded != nullptr) std::fill(rounded + r * block.cols + visible, rounded + (r + 1) * block.cols, uint16_t{0});
  }
}

template <bool kRoundGrads, bool kRoundProbabilities, typename T>
void ScoresBackward(const CausalBlock& block, const float* probabilities, const float* grad, T* grad_scores) {
  const FloatTag d;
  for (int64_t r = 0; r < block.rows; ++r) {
    T* out = grad_scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    const auto p = [&](int64_t i, size_t count) HWY_ATTR {
      return RoundIf<kRoundProbabilities>(d, LoadUpTo(d, probabilities + r * block.cols + i, count));
    };
    const auto g = [&](int64_t i, size_t count)
                       HWY_ATTR { return RoundIf<kRoundGrads>(d, LoadUpTo(d, grad + r * block.cols + i, count)); };
    DoubleSum products;
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR { products.Add(hn::Mul(p(i, count), g(i, count))); });
    const FloatVec mean = hn::Set(d, static_cast<float>(products.Total()));
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec grad_scaled = RoundIf<kRoundGrads>(d, hn::Mul(p(i, count), hn::Sub(g(i, count), mean)));
      StoreUpTo(d, hn::Mul(grad_scaled, hn::Set(d, block.scale)), out + i, count);
    });
    std::fill(out + visible, out + block.cols, T{0});
  }
}

bool RoundsScores(const CausalBlock& block) {
  return block.dtype == DType::kBFloat16 && block.rounding != AttentionRounding::kFused;
}

void StatisticsKernel(const CausalBlock& block, const float* scores, float* statistics) {
  if (RoundsScores(block)) return StatisticsRows<true>(block, scores, statistics);
  StatisticsRows<false>(block, scores, statistics);
}

void ProbabilitiesKernel(const CausalBlock& block, float* scores, const float* statistics, uint16_t* rounded) {
  if (RoundsScores(block)) return ProbabilitiesRows<true>(block, scores, statistics, rounded);
  ProbabilitiesRows<false>(block, scores, statistics, rounded);
}

void ScoresBackwardKernel(const CausalBlock& block, const float* probabilities, const float* grad, void* grad_scores) {
  if (block.dtype == DType::kFloat32) {
    return ScoresBackward<false, false>(block, probabilities, grad, static_cast<float*>(grad_scores));
  }
  auto* out = static_cast<uint16_t*>(grad_scores);
  switch (block.rounding) {
    case AttentionRounding::kFused:
      return ScoresBackward<false, false>(block, probabilities, grad, out);
    case AttentionRounding::kEagerFloat32Softmax:
      return ScoresBackward<true, false>(block, probabilities, grad, out);
    case AttentionRounding::kEager:
      return ScoresBackward<true, true>(block, probabilities, grad, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(StatisticsKernel);
HWY_EXPORT(ProbabilitiesKernel);
HWY_EXPORT(ScoresBackwardKernel);

void HostSoftmaxStatistics(const CausalBlock& block, const float* scores, float* statistics) {
  HWY_DYNAMIC_DISPATCH(StatisticsKernel)(block, scores, statistics);
}

void HostProbabilities(const CausalBlock& block, float* scores, const float* statistics, uint16_t* rounded) {
  HWY_DYNAMIC_DISPATCH(ProbabilitiesKernel)(block, scores, statistics, rounded);
}

void HostProbabilitiesBackward(const CausalBlock& block, const float* probabilities, const float* grad,
                               void* grad_scores) {
  HWY_DYNAMIC_DISPATCH(ScoresBackwardKernel)(block, probabilities, grad, grad_scores);
}

}  // namespace fsdp
#endif  // HWY_ONCE
