// SPDX-License-Identifier: Apache-2.0
//
// Highway compiles the first part of this file once for each instruction set (foreach_target.h includes the file again
// and again with another HWY_NAMESPACE), and the second part, under HWY_ONCE, chooses among them when the program runs.
// Each element is widened to float32, computed, and rounded once; the last vector of a run is filled up, so an
// element's result does not depend on its place. Instruction sets may differ in the last bit if the compiler fuses a
// multiplication and an addition.
//
// Sigmoid forms: with e = e^(-z) and s = 1 / (1 + e), x s is computed as x / (1 + e), and s' = s (1 - s) as s e s,
// because 1 - s cancels for large z and e s does not. GELU's tanh form is x s with z = 2 u, since (1 + tanh(u)) / 2 is
// the sigmoid of 2 u.
#include "fsdp/nn/host/host_elementwise.h"

#include <cmath>

#include "fsdp/tensor/convert_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host/host_elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "fsdp/nn/host/exp-inl.h"
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

// Each activation as a struct of two functions: its value, and its derivative.
struct GeluTanhForm {
  // e^(-2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3), finite so that products with 1 / (1 + e) stay numbers.
  static HWY_INLINE FloatVec Exponential(FloatTag d, FloatVec x) {
    const FloatVec cubic = hn::Mul(hn::Mul(hn::Set(d, 0.044715f), hn::Mul(x, x)), x);
    const FloatVec minus_two_u = hn::Mul(hn::Set(d, -2 * 0.79788456080286535588f), hn::Add(x, cubic));
    return hn::Min(Exp(d, minus_two_u), hn::Set(d, 3.0e38f));
  }
  static HWY_INLINE FloatVec Value(FloatTag d, FloatVec x) {
    return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exponential(d, x)));
  }
  static HWY_INLINE FloatVec Derivative(FloatTag d, FloatVec x) {
    const FloatVec one = hn::Set(d, 1.0f);
    const FloatVec e = Exponential(d, x);
    const FloatVec s = hn::Div(one, hn::Add(one, e));
    const FloatVec square = hn::Mul(hn::Set(d, 3 * 0.044715f), hn::Mul(x, x));
    const FloatVec two_du = hn::Mul(hn::Set(d, 2 * 0.79788456080286535588f), hn::Add(one, square));
    return hn::Add(s, hn::Mul(hn::Mul(x, two_du), hn::Mul(s, hn::Mul(e, s))));  // e s = 1 - s
  }
};

struct Relu {
  static HWY_INLINE FloatVec Value(FloatTag d, FloatVec x) {
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);  // a NaN passes
  }
  static HWY_INLINE FloatVec Derivative(FloatTag d, FloatVec x) {
    return hn::IfThenElse(hn::Le(x, hn::Zero(d)), hn::Zero(d), hn::Set(d, 1.0f));
  }
};

// z = x. As above, e is kept finite.
struct Silu {
  static HWY_INLINE FloatVec Exponential(FloatTag d, FloatVec x) {
    return hn::Min(Exp(d, hn::Neg(x)), hn::Set(d, 3.0e38f));
  }
  static HWY_INLINE FloatVec Value(FloatTag d, FloatVec x) {
    return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exponential(d, x)));
  }
  static HWY_INLINE FloatVec Derivative(FloatTag d, FloatVec x) {
    const FloatVec one = hn::Set(d, 1.0f);
    const FloatVec e = Exponential(d, x);
    const FloatVec s = hn::Div(one, hn::Add(one, e));
    return hn::Add(s, hn::Mul(x, hn::Mul(s, hn::Mul(e, s))));
  }
};

template <typename T>
void AddLoop(const T* a, const T* b, T* out, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    StoreUpTo(d, hn::Add(LoadUpTo(d, a + i, count), LoadUpTo(d, b + i, count)), out + i, count);
  });
}

template <typename T>
void AddRoundedLoop(const float* term, float* sum, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    // As if the term had been stored in T in between.
    const FloatVec rounded = RoundTo<T>(d, LoadUpTo(d, term + i, count));
    StoreUpTo(d, hn::Add(LoadUpTo(d, sum + i, count), rounded), sum + i, count);
  });
}

template <typename F, typename T>
void ActivateLoop(const T* x, T* out, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count)
                       HWY_ATTR { StoreUpTo(d, F::Value(d, LoadUpTo(d, x + i, count)), out + i, count); });
}

template <typename F, typename T>
void ActivateBackwardLoop(const T* grad_out, const T* x, T* grad_x, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec derivative = F::Derivative(d, LoadUpTo(d, x + i, count));
    StoreUpTo(d, hn::Mul(LoadUpTo(d, grad_out + i, count), derivative), grad_x + i, count);
  });
}

template <typename F, typename T>
void GatedLoop(const T* gate, const T* up, T* out, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    // PyTorch stores f(gate) in T before the product.
    const FloatVec activated = RoundTo<T>(d, F::Value(d, LoadUpTo(d, gate + i, count)));
    StoreUpTo(d, hn::Mul(activated, LoadUpTo(d, up + i, count)), out + i, count);
  });
}

// out = f(gate) up. PyTorch makes two operations of it, with a rounding in between; their gradients round grad_out up
// before it goes through f', and f(gate) before it is multiplied by grad_out.
template <typename F, typename T>
void GatedBackwardLoop(const T* grad_out, const T* gate, const T* up, T* grad_gate, T* grad_up, int64_t n) {
  const FloatTag d;
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec grad = LoadUpTo(d, grad_out + i, count);
    const FloatVec x = LoadUpTo(d, gate + i, count);
    const FloatVec grad_activated = RoundTo<T>(d, hn::Mul(grad, LoadUpTo(d, up + i, count)));
    StoreUpTo(d, hn::Mul(grad, RoundTo<T>(d, F::Value(d, x))), grad_up + i, count);
    StoreUpTo(d, hn::Mul(grad_activated, F::Derivative(d, x)), grad_gate + i, count);
  });
}

template <typename F>
void GatedAs(const Tensor& gate, const Tensor& up, const Tensor& out) {
  WithElementType(gate.dtype(), [&](auto element) HWY_ATTR {
    using T = decltype(element);
    GatedLoop<F>(gate.data_as<const T>(), up.data_as<const T>(), out.data_as<T>(), gate.numel());
  });
}

template <typename F>
void GatedBackwardAs(const Tensor& grad_out, const Tensor& gate, const Tensor& up, const Tensor& grad_gate,
                     const Tensor& grad_up) {
  WithElementType(gate.dtype(), [&](auto element) HWY_ATTR {
    using T = decltype(element);
    GatedBackwardLoop<F>(grad_out.data_as<const T>(), gate.data_as<const T>(), up.data_as<const T>(),
                         grad_gate.data_as<T>(), grad_up.data_as<T>(), gate.numel());
  });
}

template <typename F>
void ActivateAs(const Tensor& x, const Tensor& out) {
  WithElementType(x.dtype(), [&](auto element) HWY_ATTR {
    using T = decltype(element);
    ActivateLoop<F>(x.data_as<const T>(), out.data_as<T>(), x.numel());
  });
}

template <typename F>
void ActivateBackwardAs(const Tensor& grad_out, const Tensor& x, const Tensor& grad_x) {
  WithElementType(x.dtype(), [&](auto element) HWY_ATTR {
    using T = decltype(element);
    ActivateBackwardLoop<F>(grad_out.data_as<const T>(), x.data_as<const T>(), grad_x.data_as<T>(), x.numel());
  });
}

void AddKernel(const Tensor& a, const Tensor& b, const Tensor& out) {
  WithElementType(a.dtype(), [&](auto element) HWY_ATTR {
    using T = decltype(element);
    AddLoop(a.data_as<const T>(), b.data_as<const T>(), out.data_as<T>(), a.numel());
  });
}

void AddRoundedKernel(DType dtype, const float* term, float* sum, int64_t n) {
  WithElementType(dtype, [&](auto element) HWY_ATTR { AddRoundedLoop<decltype(element)>(term, sum, n); });
}

// Precondition of these: not kGeluErf, which has no vector form.
void ActivateKernel(ActivationKind kind, const Tensor& x, const Tensor& out) {
  if (kind == ActivationKind::kGeluTanh) return ActivateAs<GeluTanhForm>(x, out);
  if (kind == ActivationKind::kRelu) return ActivateAs<Relu>(x, out);
  ActivateAs<Silu>(x, out);
}

void ActivateBackwardKernel(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x) {
  if (kind == ActivationKind::kGeluTanh) return ActivateBackwardAs<GeluTanhForm>(grad_out, x, grad_x);
  if (kind == ActivationKind::kRelu) return ActivateBackwardAs<Relu>(grad_out, x, grad_x);
  ActivateBackwardAs<Silu>(grad_out, x, grad_x);
}

void GatedKernel(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out) {
  if (kind == ActivationKind::kGeluTanh) return GatedAs<GeluTanhForm>(gate, up, out);
  if (kind == ActivationKind::kRelu) return GatedAs<Relu>(gate, up, out);
  GatedAs<Silu>(gate, up, out);
}

void GatedBackwardKernel(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                         const Tensor& grad_gate, const Tensor& grad_up) {
  if (kind == ActivationKind::kGeluTanh) {
    return GatedBackwardAs<GeluTanhForm>(grad_out, gate, up, grad_gate, grad_up);
  }
  if (kind == ActivationKind::kRelu) return GatedBackwardAs<Relu>(grad_out, gate, up, grad_gate, grad_up);
  GatedBackwardAs<Silu>(grad_out, gate, up, grad_gate, grad_up);
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {
namespace {

HWY_EXPORT(AddKernel);
HWY_EXPORT(AddRoundedKernel);
HWY_EXPORT(ActivateKernel);
HWY_EXPORT(ActivateBackwardKernel);
HWY_EXPORT(GatedKernel);
HWY_EXPORT(GatedBackwardKernel);

float Get(const Tensor& t, int64_t i) {
  switch (t.dtype()) {
    case DType::kBFloat16:
      return BFloat16ToFloat(t.data_as<uint16_t>()[i]);
    case DType::kFloat16:
      return Float16ToFloat(t.data_as<uint16_t>()[i]);
    default:
      return t.data_as<float>()[i];
  }
}

void Set(const Tensor& t, int64_t i, double value) {
  const float rounded = static_cast<float>(value);
  switch (t.dtype()) {
    case DType::kBFloat16:
      t.data_as<uint16_t>()[i] = FloatToBFloat16(rounded);
      return;
    case DType::kFloat16:
      t.data_as<uint16_t>()[i] = FloatToFloat16(rounded);
      return;
    default:
      t.data_as<float>()[i] = rounded;
  }
}

// The erf form is computed element by element in float64: Highway has no erf. erfc keeps the digits of the cumulative
// function far to the left, for which 1 + erf(x) would cancel.
double NormalCdf(double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }

double NormalDensity(double x) { return 0.5 * M_SQRT1_2 * M_2_SQRTPI * std::exp(-0.5 * x * x); }

// `value` as an element of `t` would hold it.
float RoundAs(const Tensor& t, double value) {
  const float rounded = static_cast<float>(value);
  if (t.dtype() == DType::kBFloat16) return BFloat16ToFloat(FloatToBFloat16(rounded));
  return t.dtype() == DType::kFloat16 ? Float16ToFloat(FloatToFloat16(rounded)) : rounded;
}

}  // namespace

void HostAdd(const Tensor& a, const Tensor& b, const Tensor& out) { HWY_DYNAMIC_DISPATCH(AddKernel)(a, b, out); }

void HostAddRounded(DType dtype, const float* term, float* sum, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddRoundedKernel)(dtype, term, sum, n);
}

void HostActivate(ActivationKind kind, const Tensor& x, const Tensor& out) {
  if (kind != ActivationKind::kGeluErf) return HWY_DYNAMIC_DISPATCH(ActivateKernel)(kind, x, out);
  for (int64_t i = 0; i < x.numel(); ++i) Set(out, i, Get(x, i) * NormalCdf(Get(x, i)));
}

void HostActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x) {
  if (kind != ActivationKind::kGeluErf) return HWY_DYNAMIC_DISPATCH(ActivateBackwardKernel)(kind, grad_out, x, grad_x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double value = Get(x, i);
    Set(grad_x, i, Get(grad_out, i) * (NormalCdf(value) + value * NormalDensity(value)));
  }
}

void HostActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out) {
  if (kind != ActivationKind::kGeluErf) return HWY_DYNAMIC_DISPATCH(GatedKernel)(kind, gate, up, out);
  for (int64_t i = 0; i < gate.numel(); ++i) {
    Set(out, i, RoundAs(gate, Get(gate, i) * NormalCdf(Get(gate, i))) * Get(up, i));
  }
}

void HostActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, const Tensor& grad_up) {
  if (kind != ActivationKind::kGeluErf) {
    return HWY_DYNAMIC_DISPATCH(GatedBackwardKernel)(kind, grad_out, gate, up, grad_gate, grad_up);
  }
  for (int64_t i = 0; i < gate.numel(); ++i) {
    const double value = Get(gate, i);
    const float grad = Get(grad_out, i);
    Set(grad_up, i, grad * RoundAs(gate, value * NormalCdf(value)));
    Set(grad_gate, i, RoundAs(gate, grad * Get(up, i)) * (NormalCdf(value) + value * NormalDensity(value)));
  }
}

}  // namespace fsdp
#endif  // HWY_ONCE
