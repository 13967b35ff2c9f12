// SPDX-License-Identifier: Apache-2.0
//
// Exponentials for Highway kernels: within 1 ulp, as Highway's own, but NaN gives NaN and large arguments infinity. For
// code between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE: this file is read once for each instruction set, hence the
// guard that toggles.
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

// e^x, at most 1 ulp off; 0 below -104. Highway's Exp leaves NaN and arguments beyond its range unspecified, whereas a
// loss that is NaN or infinite must be seen as such: hence the clamp from above and the selection of NaN.
HWY_INLINE FloatVec Exp(FloatTag d, FloatVec x) {
  // Min may turn a NaN into 104, hence the selection afterwards.
  const FloatVec y = hn::Exp(d, hn::Min(x, hn::Set(d, 104.0f)));  // infinity from 88.73 on
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#endif  // FSDP_NN_HOST_EXP_INL_H_
