// SPDX-License-Identifier: Apache-2.0
//
// The pieces of a softmax over one row, for Highway kernels: its maximum, and the sum of exponentials, summed in
// float64. A NaN in the row makes the sum NaN. Read once for each instruction set, as exp-inl.h.
#if defined(FSDP_NN_HOST_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_NN_HOST_SOFTMAX_INL_H_
#undef FSDP_NN_HOST_SOFTMAX_INL_H_
#else
#define FSDP_NN_HOST_SOFTMAX_INL_H_
#endif

#include <limits>

#include "fsdp/nn/host/exp-inl.h"
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

// The include guard toggles, so that each instruction set gets its own copy of these functions.
HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

// The statistics that are kept of a row: probabilities are e^(x - maximum) * inverse_sum. `maximum` is subtracted so
// that no exponential overflows; the quotient does not change.
struct SoftmaxStatistics {
  float maximum;
  float inverse_sum;
};

// The largest of n elements; -inf if all are, or if n is 0. A NaN among the elements may be lost here; RowExpSum finds
// it.
template <typename T>
HWY_INLINE float RowMaximum(const T* x, int64_t n) {
  const FloatTag d;
  // Lanes past the end are -inf, which no maximum takes over.
  const float lowest = -std::numeric_limits<float>::infinity();
  FloatVec maximum = hn::Set(d, lowest);
  ForEachVector(
      n, [&](int64_t i, size_t count) HWY_ATTR { maximum = hn::Max(maximum, LoadUpTo(d, x + i, count, lowest)); });
  // A maximum does not depend on the order, so all targets agree.
  return hn::GetLane(hn::MaxOfLanes(d, maximum));
}

// Sum of e^(x - maximum). Sums are float64, in the order of DoubleSum. T as for LoadUpTo.
template <typename T>
HWY_INLINE double RowExpSum(const T* x, float maximum, int64_t n) {
  const FloatTag d;
  // float64, so that the error does not grow with the number of classes.
  DoubleSum sum;
  const float lowest = -std::numeric_limits<float>::infinity();
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec centered = hn::Sub(LoadUpTo(d, x + i, count, lowest), hn::Set(d, maximum));
    sum.Add(Exp(d, centered));  // e^-inf = 0 past the end
  });
  return sum.Total();
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#endif  // FSDP_NN_HOST_SOFTMAX_INL_H_
