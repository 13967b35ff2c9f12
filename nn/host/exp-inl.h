// SPDX-License-Identifier: Apache-2.0
//
// Exponentials for Highway kernels: within 1 ulp, as Highway's own, but NaN gives NaN and large arguments infinity.
#if defined(FSDP_NN_HOST_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_NN_HOST_EXP_INL_H_
#undef FSDP_NN_HOST_EXP_INL_H_
#else
#define FSDP_NN_HOST_EXP_INL_H_
#endif

#include "fsdp/tensor/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

// e^x, at most 1 ulp off; 0 below -104.
HWY_INLINE FloatVec Exp(FloatTag d, FloatVec x) {
  const FloatVec y = hn::Exp(d, hn::Min(x, hn::Set(d, 104.0f)));  // infinity from 88.73 on
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#endif  // FSDP_NN_HOST_EXP_INL_H_
