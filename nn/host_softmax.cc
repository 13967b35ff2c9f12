// SPDX-License-Identifier: Apache-2.0
#include "nn/host_softmax.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host_softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "nn/exp-inl.h"
#include "nn/simd-inl.h"
#include "nn/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

void StatisticsKernel(const CausalBlock& block, const float* scores, float* statistics) {
  const FloatTag d;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* row = scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    const float maximum = RowMaximum(row, visible) * block.scale;
    DoubleSum sum;
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec scaled = hn::Mul(LoadUpTo(d, row + i, count), hn::Set(d, block.scale));
      const FloatVec e = Exp(d, hn::Sub(scaled, hn::Set(d, maximum)));
      sum.Add(hn::IfThenElseZero(hn::FirstN(d, count), e));
    });
    statistics[2 * r] = maximum;
    statistics[2 * r + 1] = static_cast<float>(1 / sum.Total());
  }
}

void ProbabilitiesKernel(const CausalBlock& block, float* scores, const float* statistics, uint16_t* rounded) {
  const FloatTag d;
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    const FloatVec maximum = hn::Set(d, statistics[2 * r]);
    const FloatVec inverse_sum = hn::Set(d, statistics[2 * r + 1]);
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec scaled = hn::Mul(LoadUpTo(d, row + i, count), hn::Set(d, block.scale));
      const FloatVec p = hn::Mul(Exp(d, hn::Sub(scaled, maximum)), inverse_sum);
      StoreUpTo(d, p, row + i, count);
      if (rounded != nullptr) StoreUpTo(d, p, rounded + r * block.cols + i, count);
    });
    std::fill(row + visible, row + block.cols, 0.0f);
    if (rounded != nullptr) std::fill(rounded + r * block.cols + visible, rounded + (r + 1) * block.cols, uint16_t{0});
  }
}

template <typename T>
void BackwardRows(const CausalBlock& block, const float* probabilities, const float* grad, T* grad_scores) {
  const FloatTag d;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* p = probabilities + r * block.cols;
    const float* g = grad + r * block.cols;
    T* out = grad_scores + r * block.cols;
    const int64_t visible = block.first + r + 1;
    DoubleSum products;
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      products.Add(hn::Mul(LoadUpTo(d, p + i, count), LoadUpTo(d, g + i, count)));
    });
    const FloatVec mean = hn::Set(d, static_cast<float>(products.Total()));
    ForEachVector(visible, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec centered = hn::Sub(LoadUpTo(d, g + i, count), mean);
      const FloatVec scaled = hn::Mul(hn::Set(d, block.scale), LoadUpTo(d, p + i, count));
      StoreUpTo(d, hn::Mul(scaled, centered), out + i, count);
    });
    std::fill(out + visible, out + block.cols, T{0});
  }
}

void BackwardKernel(const CausalBlock& block, const float* probabilities, const float* grad, DType dtype,
                    void* grad_scores) {
  if (dtype == DType::kBFloat16) {
    return BackwardRows(block, probabilities, grad, static_cast<uint16_t*>(grad_scores));
  }
  BackwardRows(block, probabilities, grad, static_cast<float*>(grad_scores));
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(StatisticsKernel);
HWY_EXPORT(ProbabilitiesKernel);
HWY_EXPORT(BackwardKernel);

void HostSoftmaxStatistics(const CausalBlock& block, const float* scores, float* statistics) {
  HWY_DYNAMIC_DISPATCH(StatisticsKernel)(block, scores, statistics);
}

void HostProbabilities(const CausalBlock& block, float* scores, const float* statistics, uint16_t* rounded) {
  HWY_DYNAMIC_DISPATCH(ProbabilitiesKernel)(block, scores, statistics, rounded);
}

void HostProbabilitiesBackward(const CausalBlock& block, const float* probabilities, const float* grad, DType dtype,
                               void* grad_scores) {
  HWY_DYNAMIC_DISPATCH(BackwardKernel)(block, probabilities, grad, dtype, grad_scores);
}

}  // namespace fsdp
#endif  // HWY_ONCE
