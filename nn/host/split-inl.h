// SPDX-License-Identifier: Apache-2.0
//
// Split: arithmetic of float32 lanes with a float64, for the norms.
#if defined(FSDP_NN_HOST_SPLIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_NN_HOST_SPLIT_INL_H_
#undef FSDP_NN_HOST_SPLIT_INL_H_
#else
#define FSDP_NN_HOST_SPLIT_INL_H_
#endif

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

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#endif  // FSDP_NN_HOST_SPLIT_INL_H_
