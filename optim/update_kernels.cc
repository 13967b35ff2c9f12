// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/update_kernels.h"

#include <cstring>
#include <type_traits>

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

// RoundAtRandom of stochastic_rounding.h: the numbers that bfloat16 elements hold then.
HWY_INLINE FloatVec RoundAtRandom(FloatTag d, FloatVec v, const uint32_t* random, size_t count) {
  const hn::RebindToUnsigned<FloatTag> d32;
  uint32_t lanes[hn::MaxLanes(d32)] = {};
  std::memcpy(lanes, random, count * sizeof(uint32_t));
  const auto bits = hn::BitCast(d32, v);
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x00400000u));
  const auto rounded = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet,
                                      hn::Add(bits, hn::ShiftRight<16>(hn::LoadU(d32, lanes))));
  return hn::BitCast(d, hn::And(rounded, hn::Set(d32, 0xFFFF0000u)));
}

// Stores a parameter or state, of which `random` has the numbers.
template <typename P>
HWY_INLINE void StoreRounded(FloatTag d, FloatVec v, int64_t i, size_t count, P* to, const uint32_t* random) {
  if constexpr (std::is_same_v<P, uint16_t>) {
    if (random != nullptr) v = RoundAtRandom(d, v, random + i, count);
  }
  StoreUpTo(d, v, to + i, count);
}

// The copy is rounded from the register, so a low-precision forward needs no pass over the parameters after the step.
template <typename P>
HWY_INLINE void StoreParameter(FloatTag d, FloatVec p, int64_t i, size_t count, P* parameter,
                               const UpdateExtras& extras) {
  StoreRounded(d, p, i, count, parameter, extras.random[0]);
  if (extras.compute_copy != nullptr) StoreUpTo(d, p, extras.compute_copy + i, count);
}

// torch.maximum, which keeps a NaN of either.
HWY_INLINE FloatVec Maximum(FloatVec a, FloatVec b) {
  return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Le(b, a), a, b));
}

// Step and decay are added to each other first and then to p: p is rounded once (see AdamWScalars).
template <typename G, typename P>
void AdamWLoop(const AdamWScalars& s, const G* HWY_RESTRICT grad, int64_t numel, P* HWY_RESTRICT parameter,
               P* HWY_RESTRICT exp_avg, P* HWY_RESTRICT exp_avg_sq, const UpdateExtras& extras,
               const AdamVariant& variant) {
  const FloatTag d;
  P* const largest = static_cast<P*>(variant.max_exp_avg_sq);
  ForEachVector(numel, [&](int64_t i, size_t count) HWY_ATTR {
    FloatVec g = LoadGrad(d, grad + i, count, extras.grad_factor);
    const FloatVec p = LoadUpTo(d, parameter + i, count);
    if (variant.weight_decay != 0) g = hn::Add(g, hn::Mul(hn::Set(d, variant.weight_decay), p));
    const FloatVec m = Lerp(d, LoadUpTo(d, exp_avg + i, count), g, s.one_minus_beta1);
    const FloatVec g_squared = hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g);
    const FloatVec v = hn::Add(hn::Mul(LoadUpTo(d, exp_avg_sq + i, count), hn::Set(d, s.beta2)), g_squared);
    FloatVec under_root = v;
    if (largest != nullptr) {
      under_root = Maximum(LoadUpTo(d, largest + i, count), v);
      StoreRounded(d, under_root, i, count, largest, extras.random[2]);
    }
    const FloatVec denominator =
        hn::Add(hn::Div(hn::Sqrt(under_root), hn::Set(d, s.sqrt_bias_correction2)), hn::Set(d, s.eps));
    const FloatVec step = hn::Div(hn::Mul(hn::Set(d, s.negative_step_size), m), denominator);
    StoreRounded(d, m, i, count, exp_avg, extras.random[1]);
    StoreRounded(d, v, i, count, exp_avg_sq, extras.random[2]);
    const FloatVec decay = hn::Mul(hn::Set(d, s.negative_decay), p);
    StoreParameter(d, hn::Add(p, hn::Add(step, decay)), i, count, parameter, extras);
  });
}

// The branches depend only on the scalars, so every element takes the same one.
template <typename G, typename P>
void SgdLoop(const SgdScalars& s, const G* HWY_RESTRICT grad, int64_t numel, P* HWY_RESTRICT parameter,
             P* HWY_RESTRICT momentum_buffer, const UpdateExtras& extras) {
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
      StoreRounded(d, b, i, count, momentum_buffer, extras.random[1]);
      g = s.nesterov ? hn::Add(g, hn::Mul(momentum, b)) : b;
    }
    StoreParameter(d, hn::Add(p, hn::Mul(hn::Set(d, s.negative_lr), g)), i, count, parameter, extras);
  });
}

// torch.sign: the sign bit with 1 of what is neither 0 nor a NaN, which stay.
HWY_INLINE FloatVec Sign(FloatTag d, FloatVec v) {
  const FloatVec one = hn::CopySign(hn::Set(d, 1.0f), v);
  return hn::IfThenElse(hn::IsNaN(v), v, hn::IfThenElse(hn::Eq(v, hn::Zero(d)), hn::Zero(d), one));
}

template <typename G, typename P>
void LionLoop(const LionScalars& s, const G* HWY_RESTRICT grad, int64_t numel, P* HWY_RESTRICT parameter,
              P* HWY_RESTRICT exp_avg, const UpdateExtras& extras) {
  const FloatTag d;
  ForEachVector(numel, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec g = LoadGrad(d, grad + i, count, extras.grad_factor);
    const FloatVec p = LoadUpTo(d, parameter + i, count);
    const FloatVec m = LoadUpTo(d, exp_avg + i, count);
    const FloatVec direction = hn::Add(hn::Mul(m, hn::Set(d, s.beta1)), hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    const FloatVec step = hn::Mul(hn::Set(d, s.negative_lr), Sign(d, direction));
    const FloatVec next = hn::Add(hn::Mul(m, hn::Set(d, s.beta2)), hn::Mul(hn::Set(d, s.one_minus_beta2), g));
    StoreRounded(d, next, i, count, exp_avg, extras.random[1]);
    const FloatVec decay = hn::Mul(hn::Set(d, s.negative_decay), p);
    StoreParameter(d, hn::Add(p, hn::Add(step, decay)), i, count, parameter, extras);
  });
}

// Calls f with an element of the gradient's type and one of the parameter's.
template <typename F>
HWY_INLINE void WithElementTypes(const UpdateSlice& slice, const F& f) {
  WithElementType(slice.grad_dtype, [&](auto grad) HWY_ATTR {
    if (slice.dtype == DType::kFloat32) return f(grad, float{0});
    f(grad, grad);
  });
}

void AdamWKernel(const AdamWScalars& scalars, const UpdateSlice& slice, void* exp_avg, void* exp_avg_sq,
                 const UpdateExtras& extras, const AdamVariant& variant) {
  WithElementTypes(slice, [&](auto g, auto p) HWY_ATTR {
    using P = decltype(p);
    AdamWLoop(scalars, static_cast<const decltype(g)*>(slice.grad), slice.numel, static_cast<P*>(slice.parameter),
              static_cast<P*>(exp_avg), static_cast<P*>(exp_avg_sq), extras, variant);
  });
}

void SgdKernel(const SgdScalars& scalars, const UpdateSlice& slice, void* momentum_buffer, const UpdateExtras& extras) {
  WithElementTypes(slice, [&](auto g, auto p) HWY_ATTR {
    using P = decltype(p);
    SgdLoop(scalars, static_cast<const decltype(g)*>(slice.grad), slice.numel, static_cast<P*>(slice.parameter),
            static_cast<P*>(momentum_buffer), extras);
  });
}

void LionKernel(const LionScalars& scalars, const UpdateSlice& slice, void* exp_avg, const UpdateExtras& extras) {
  WithElementTypes(slice, [&](auto g, auto p) HWY_ATTR {
    using P = decltype(p);
    LionLoop(scalars, static_cast<const decltype(g)*>(slice.grad), slice.numel, static_cast<P*>(slice.parameter),
             static_cast<P*>(exp_avg), extras);
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

void UpdateAdamW(const AdamWScalars& scalars, const UpdateSlice& slice, void* exp_avg, void* exp_avg_sq,
                 const UpdateExtras& extras, const AdamVariant& variant) {
  HWY_DYNAMIC_DISPATCH(AdamWKernel)(scalars, slice, exp_avg, exp_avg_sq, extras, variant);
}

void UpdateSgd(const SgdScalars& scalars, const UpdateSlice& slice, void* momentum_buffer, const UpdateExtras& extras) {
  HWY_DYNAMIC_DISPATCH(SgdKernel)(scalars, slice, momentum_buffer, extras);
}

void UpdateLion(const LionScalars& scalars, const UpdateSlice& slice, void* exp_avg, const UpdateExtras& extras) {
  HWY_DYNAMIC_DISPATCH(LionKernel)(scalars, slice, exp_avg, extras);
}

}  // namespace fsdp
#endif  // HWY_ONCE
