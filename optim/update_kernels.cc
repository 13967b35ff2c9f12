// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/update_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/update_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

// One source, compiled for each instruction set (Highway), and the best one is chosen at run time. Loops handle one
// vector at a time, the last one masked, so every element has the same operations wherever it is in the slice.

// torch.lerp(start, end, weight). PyTorch's CPU kernel fuses product and sum if the machine can; this never does.
HWY_INLINE FloatVec Lerp(FloatTag d, FloatVec start, FloatVec end, float weight) {
  const FloatVec difference = hn::Sub(end, start);
  if (weight < 0.5f) return hn::Add(start, hn::Mul(hn::Set(d, weight), difference));
  return hn::Sub(end, hn::Mul(difference, hn::Set(d, 1.0f - weight)));
}

// Gradients times the factor, rounded to their dtype, as if ScaleBy had stored them in between.
template <typename G>
HWY_INLINE FloatVec LoadGrad(FloatTag d, const G* grad, size_t count, float factor) {
  const FloatVec g = LoadUpTo(d, grad, count);
  return factor == 1 ? g : RoundTo<G>(d, hn::Mul(g, hn::Set(d, factor)));
}

// The copy is rounded from the register, so a low-precision forward needs no pass over the parameters after the step.
HWY_INLINE void StoreParameter(FloatTag d, FloatVec p, int64_t i, size_t count, float* parameter, uint16_t* copy) {
  StoreUpTo(d, p, parameter + i, count);
  if (copy != nullptr) StoreUpTo(d, p, copy + i, count);
}

// torch.maximum, which keeps a NaN of either.
HWY_INLINE FloatVec Maximum(FloatVec a, FloatVec b) {
  return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Le(b, a), a, b));
}

// Step and decay are added to each other first and then to p: p is rounded once (see AdamWScalars).
template <typename G>
void AdamWLoop(const AdamWScalars& s, const G* HWY_RESTRICT grad, int64_t numel, float* HWY_RESTRICT parameter,
               float* HWY_RESTRICT exp_avg, float* HWY_RESTRICT exp_avg_sq, const UpdateExtras& extras,
               const AdamVariant& variant) {
  const FloatTag d;
  ForEachVector(numel, [&](int64_t i, size_t count) HWY_ATTR {
    FloatVec g = LoadGrad(d, grad + i, count, extras.grad_factor);
    const FloatVec p = LoadUpTo(d, parameter + i, count);
    if (variant.weight_decay != 0) g = hn::Add(g, hn::Mul(hn::Set(d, variant.weight_decay), p));
    const FloatVec m = Lerp(d, LoadUpTo(d, exp_avg + i, count), g, s.one_minus_beta1);
    const FloatVec g_squared = hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g);
    const FloatVec v = hn::Add(hn::Mul(LoadUpTo(d, exp_avg_sq + i, count), hn::Set(d, s.beta2)), g_squared);
    FloatVec under_root = v;
    if (variant.max_exp_avg_sq != nullptr) {
      under_root = Maximum(LoadUpTo(d, variant.max_exp_avg_sq + i, count), v);
      StoreUpTo(d, under_root, variant.max_exp_avg_sq + i, count);
    }
    const FloatVec denominator =
        hn::Add(hn::Div(hn::Sqrt(under_root), hn::Set(d, s.sqrt_bias_correction2)), hn::Set(d, s.eps));
    const FloatVec step = hn::Div(hn::Mul(hn::Set(d, s.negative_step_size), m), denominator);
    StoreUpTo(d, m, exp_avg + i, count);
    StoreUpTo(d, v, exp_avg_sq + i, count);
    const FloatVec decay = hn::Mul(hn::Set(d, s.negative_decay), p);
    StoreParameter(d, hn::Add(p, hn::Add(step, decay)), i, count, parameter, extras.compute_copy);
  });
}

// The branches depend only on the scalars, so every element takes the same one.
template <typename G>
void SgdLoop(const SgdScalars& s, const G* HWY_RESTRICT grad, int64_t numel, float* HWY_RESTRICT parameter,
             float* HWY_RESTRICT momentum_buffer, const UpdateExtras& extras) {
  const FloatTag d;
  const FloatVec momentum = hn::Set(d, s.momentum);
  ForEachVector(numel, [&](int64_t i, size_t count) HWY_ATTR {
    FloatVec g = LoadGrad(d, grad + i, count, extras.grad_factor);
    const FloatVec p = LoadUpTo(d, parameter + i, count);
    if (s.weight_decay != 0) g = hn::Add(g, hn::Mul(hn::Set(d, s.weight_decay), p));
    if (s.momentum != 0) {
      FloatVec b = g;
      if (!s.first) {
        b = hn::Add(hn::Mul(LoadUpTo(d, momentum_buffer + i, count), momentum),
                    hn::Mul(hn::Set(d, s.one_minus_dampening), g));
      }
      StoreUpTo(d, b, momentum_buffer + i, count);
      g = s.nesterov ? hn::Add(g, hn::Mul(momentum, b)) : b;
    }
    StoreParameter(d, hn::Add(p, hn::Mul(hn::Set(d, s.negative_lr), g)), i, count, parameter, extras.compute_copy);
  });
}

// torch.sign: the sign bit with 1 of what is neither 0 nor a NaN, which stay.
HWY_INLINE FloatVec Sign(FloatTag d, FloatVec v) {
  const FloatVec one = hn::CopySign(hn::Set(d, 1.0f), v);
  return hn::IfThenElse(hn::IsNaN(v), v, hn::IfThenElse(hn::Eq(v, hn::Zero(d)), hn::Zero(d), one));
}

template <typename G>
void LionLoop(const LionScalars& s, const G* HWY_RESTRICT grad, int64_t numel, float* HWY_RESTRICT parameter,
              float* HWY_RESTRICT exp_avg, const UpdateExtras& extras) {
  const FloatTag d;
  ForEachVector(numel, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec g = LoadGrad(d, grad + i, count, extras.grad_factor);
    const FloatVec p = LoadUpTo(d, parameter + i, count);
    const FloatVec m = LoadUpTo(d, exp_avg + i, count);
    const FloatVec direction = hn::Add(hn::Mul(m, hn::Set(d, s.beta1)), hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    const FloatVec step = hn::Mul(hn::Set(d, s.negative_lr), Sign(d, direction));
    StoreUpTo(d, hn::Add(hn::Mul(m, hn::Set(d, s.beta2)), hn::Mul(hn::Set(d, s.one_minus_beta2), g)), exp_avg + i,
              count);
    const FloatVec decay = hn::Mul(hn::Set(d, s.negative_decay), p);
    StoreParameter(d, hn::Add(p, hn::Add(step, decay)), i, count, parameter, extras.compute_copy);
  });
}

void AdamWKernel(const AdamWScalars& scalars, DType grad_dtype, const void* grad, int64_t numel, float* parameter,
                 float* exp_avg, float* exp_avg_sq, const UpdateExtras& extras, const AdamVariant& variant) {
  WithElementType(grad_dtype, [&](auto element) HWY_ATTR {
    AdamWLoop(scalars, static_cast<const decltype(element)*>(grad), numel, parameter, exp_avg, exp_avg_sq, extras,
              variant);
  });
}

void SgdKernel(const SgdScalars& scalars, DType grad_dtype, const void* grad, int64_t numel, float* parameter,
               float* momentum_buffer, const UpdateExtras& extras) {
  WithElementType(grad_dtype, [&](auto element) HWY_ATTR {
    SgdLoop(scalars, static_cast<const decltype(element)*>(grad), numel, parameter, momentum_buffer, extras);
  });
}

void LionKernel(const LionScalars& scalars, DType grad_dtype, const void* grad, int64_t numel, float* parameter,
                float* exp_avg, const UpdateExtras& extras) {
  WithElementType(grad_dtype, [&](auto element) HWY_ATTR {
    LionLoop(scalars, static_cast<const decltype(element)*>(grad), numel, parameter, exp_avg, extras);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(AdamWKernel);
HWY_EXPORT(SgdKernel);
HWY_EXPORT(LionKernel);

void UpdateAdamW(const AdamWScalars& scalars, DType grad_dtype, const void* grad, int64_t numel, float* parameter,
                 float* exp_avg, float* exp_avg_sq, const UpdateExtras& extras, const AdamVariant& variant) {
  HWY_DYNAMIC_DISPATCH(AdamWKernel)(scalars, grad_dtype, grad, numel, parameter, exp_avg, exp_avg_sq, extras, variant);
}

void UpdateSgd(const SgdScalars& scalars, DType grad_dtype, const void* grad, int64_t numel, float* parameter,
               float* momentum_buffer, const UpdateExtras& extras) {
  HWY_DYNAMIC_DISPATCH(SgdKernel)(scalars, grad_dtype, grad, numel, parameter, momentum_buffer, extras);
}

void UpdateLion(const LionScalars& scalars, DType grad_dtype, const void* grad, int64_t numel, float* parameter,
                float* exp_avg, const UpdateExtras& extras) {
  HWY_DYNAMIC_DISPATCH(LionKernel)(scalars, grad_dtype, grad, numel, parameter, exp_avg, extras);
}

}  // namespace fsdp
#endif  // HWY_ONCE
