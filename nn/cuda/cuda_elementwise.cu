// SPDX-License-Identifier: Apache-2.0
//
// A single kernel template, Map, serves all elementwise operations: a form specifies how many values it takes and
// makes, and computes them in float32. A thread loads several packs of 16 bytes before it uses the first, so that
// enough bytes are on their way to saturate the memory, then widens, calls the form, rounds once and stores.
//
// Budget: at the speed of a copy an H100 has time for about 38 instructions, 5 of them special functions, for each
// 16-bit element that is read and written. So the kind of activation is a template argument, and 16-bit activations use
// fast_math.h, whose error is far below the error of the rounding that follows. Float32 activations are accurate to
// float32. Value and derivative are computed together even if only one is needed: the compiler drops the other.

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "fsdp/cuda/fast_math.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_elementwise.h"

namespace fsdp {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;

// The value of an activation, and its derivative, at one x.
struct Slope {
  float value;
  float derivative;
};

// With e an exponential and s = 1 / (1 + e): x s, and the derivative of s, s (1
// - s) times `rate`.

__device__ Slope FastSigmoidal(float x, float log2_e, float rate) {
  const float s = FastReciprocal(1 + FastExp2(log2_e));
  return {x * s, fmaf(x * rate, fmaf(-s, s, s), s)};
}

// 1 - s as e s, which keeps its digits if s is almost 1. A finite e keeps the products numbers.
__device__ Slope Sigmoidal(float x, float e, float rate) {
  e = fminf(e, 3.0e38f);
  const float s = Reciprocal(1 + e);
  return {x * s, s + x * rate * (s * (e * s))};
}

template <bool kFast>
__device__ Slope GeluTanh(float x) {
  constexpr float kCubic = 0.044715f;
  constexpr float kTwoRootTwoOverPi = 2 * 0.79788456080286535588f;
  const float rate = kTwoRootTwoOverPi * (1 + 3 * kCubic * (x * x));
  if constexpr (kFast) {
    constexpr float kScale = -kTwoRootTwoOverPi * kLog2E;
    return FastSigmoidal(x, x * fmaf(kScale * kCubic, x * x, kScale), rate);
  } else {
    const float minus_two_u = -kTwoRootTwoOverPi * (x + kCubic * (x * x) * x);
    return Sigmoidal(x, expf(minus_two_u), rate);
  }
}

constexpr float kInverseRootTwoPi = 0.39894228040143267794f;

// The normal distribution's Phi(-|x|) is exp(-x^2 / 2) times a smooth function, here a polynomial in t = 1 / (1 + 0.3
// |x|), fitted to a relative error below 2^-16 at every x; the exponential is the derivative's too.
__device__ Slope FastGeluErf(float x) {
  const float t = FastReciprocal(fmaf(0.3f, fabsf(x), 1.0f));
  const float e = FastExp2(x * x * (-0.5f * kLog2E));
  float tail = fmaf(t, -0.07631692f, 0.2137047f);
  tail = fmaf(t, tail, -0.01430328f);
  tail = fmaf(t, tail, 0.14278493f);
  tail = fmaf(t, tail, 0.11409364f);
  tail = fmaf(t, tail, 0.12004171f);
  tail *= t * e;
  const float cdf = x < 0 ? tail : 1 - tail;
  return {x * cdf, fmaf(x * kInverseRootTwoPi, e, cdf)};
}

__device__ Slope GeluErf(float x) {
  constexpr float kRootHalf = 0.70710678118654752440f;
  const float cdf = 0.5f * erfcf(-x * kRootHalf);
  return {x * cdf, cdf + x * (kInverseRootTwoPi * expf(-0.5f * x * x))};
}

// A NaN passes.
__device__ Slope Relu(float x) { return {x < 0 ? 0 : x, x <= 0 ? 0.0f : 1.0f}; }

// For activations in T.
template <ActivationKind kKind, typename T>
__device__ Slope SlopeOf(float x) {
  constexpr bool kFast = !std::is_same_v<T, float>;
  if constexpr (kKind == ActivationKind::kGeluTanh) {
    return GeluTanh<kFast>(x);
  } else if constexpr (kKind == ActivationKind::kGeluErf) {
    return kFast ? FastGeluErf(x) : GeluErf(x);
  } else if constexpr (kKind == ActivationKind::kRelu) {
    return Relu(x);
  } else {
    static_assert(kKind == ActivationKind::kSilu);
    return kFast ? FastSigmoidal(x, -kLog2E * x, 1) : Sigmoidal(x, expf(-x), 1);
  }
}

// The forms: each computes kOut values from kIn, of activations in T.

struct AddForm {
  static constexpr int kIn = 2, kOut = 1;
  template <typename T>
  __device__ static void Run(const float* in, float* out) {
    out[0] = in[0] + in[1];
  }
};

template <ActivationKind kKind>
struct ActivateForm {
  static constexpr int kIn = 1, kOut = 1;
  template <typename T>
  __device__ static void Run(const float* in, float* out) {
    out[0] = SlopeOf<kKind, T>(in[0]).value;
  }
};

// From grad_out and x.
template <ActivationKind kKind>
struct ActivateBackwardForm {
  static constexpr int kIn = 2, kOut = 1;
  template <typename T>
  __device__ static void Run(const float* in, float* out) {
    out[0] = in[0] * SlopeOf<kKind, T>(in[1]).derivative;
  }
};

// From gate and up.
template <ActivationKind kKind>
struct GatedForm {
  static constexpr int kIn = 2, kOut = 1;
  template <typename T>
  __device__ static void Run(const float* in, float* out) {
    out[0] = RoundTo<T>(SlopeOf<kKind, T>(in[0]).value) * in[1];
  }
};

// From grad_out, gate and up: grad_gate and grad_up.
template <ActivationKind kKind>
struct GatedBackwardForm {
  static constexpr int kIn = 3, kOut = 2;
  template <typename T>
  __device__ static void Run(const float* in, float* out) {
    const Slope slope = SlopeOf<kKind, T>(in[1]);
    out[0] = RoundTo<T>(in[0] * in[2]) * slope.derivative;
    out[1] = in[0] * RoundTo<T>(slope.value);
  }
};

template <typename T, typename Form>
struct Operands {
  const T* in[Form::kIn];
  T* out[Form::kOut];
};

// The N elements of each input, and of each output.
template <int N, typename T, typename Form>
struct Packs : PackSize<N> {
  __device__ void Load(const Operands<T, Form>& operands, int64_t i) {
#pragma unroll
    for (int o = 0; o < Form::kIn; ++o) in[o] = LoadPack<N>(operands.in[o] + i);
  }

  __device__ void Finish(const Operands<T, Form>& operands, int64_t i) const {
    float values[Form::kIn][N];
#pragma unroll
    for (int o = 0; o < Form::kIn; ++o) WidenPack(in[o], values[o]);
    float out[Form::kOut][N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float arguments[Form::kIn], results[Form::kOut];
#pragma unroll
      for (int o = 0; o < Form::kIn; ++o) arguments[o] = values[o][k];
      Form::template Run<T>(arguments, results);
#pragma unroll
      for (int o = 0; o < Form::kOut; ++o) out[o][k] = results[o];
    }
#pragma unroll
    for (int o = 0; o < Form::kOut; ++o) StoreGlobalPack(RoundPack<T>(out[o]), operands.out[o] + i);
  }

  Pack<T, N> in[Form::kIn];
};

// Packs that a thread loads before it uses the first: 64 bytes, or a little more for three inputs.
template <typename Form>
constexpr int kPacksInFlight = Form::kIn == 1 ? 4 : 2;

template <int N, typename T, typename Form>
__global__ void __launch_bounds__(kThreads) Map(Operands<T, Form> operands, PackedRange range) {
  ForEachLoaded<kPacksInFlight<Form>, Packs<N, T, Form>, Packs<1, T, Form>>(range, operands);
}

template <typename Form>
void LaunchMap(const Tensor* const (&in)[Form::kIn], const Tensor* const (&out)[Form::kOut], CUstream_st* stream) {
  if (out[0]->numel() == 0) return;
  WithActivationType(out[0]->dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    Operands<T, Form> operands;
    // All have one element size. If a form has fewer operands, its first ones fill the remaining places.
    const void* data[5];
    std::fill(std::begin(data), std::end(data), out[0]->data());
    for (int o = 0; o < Form::kIn; ++o) data[o] = operands.in[o] = static_cast<const T*>(in[o]->data());
    for (int o = 0; o < Form::kOut; ++o) data[3 + o] = operands.out[o] = static_cast<T*>(out[o]->data());
    constexpr size_t kSize = sizeof(T);
    const PackedRange range =
        MakePackedRange(kPack, out[0]->numel(),
                        {{data[0], kSize}, {data[1], kSize}, {data[2], kSize}, {data[3], kSize}, {data[4], kSize}});
    const int64_t threads = range.threads(kPack, kPacksInFlight<Form>);
    Launch(Map<kPack, T, Form>, Blocks(threads), kThreads, 0, stream, operands, range);
  });
}

// Launches kForm of `kind`.
template <template <ActivationKind> class kForm, typename In, typename Out>
void LaunchActivation(ActivationKind kind, const In& in, const Out& out, CUstream_st* stream) {
  switch (kind) {
    case ActivationKind::kGeluTanh:
      return LaunchMap<kForm<ActivationKind::kGeluTanh>>(in, out, stream);
    case ActivationKind::kGeluErf:
      return LaunchMap<kForm<ActivationKind::kGeluErf>>(in, out, stream);
    case ActivationKind::kRelu:
      return LaunchMap<kForm<ActivationKind::kRelu>>(in, out, stream);
    case ActivationKind::kSilu:
      return LaunchMap<kForm<ActivationKind::kSilu>>(in, out, stream);
  }
}

}  // namespace

void CudaAdd(const Tensor& a, const Tensor& b, const Tensor& out, CUstream_st* stream) {
  LaunchMap<AddForm>({&a, &b}, {&out}, stream);
}

void CudaActivate(ActivationKind kind, const Tensor& x, const Tensor& out, CUstream_st* stream) {
  const Tensor* const in[] = {&x};
  const Tensor* const outs[] = {&out};
  LaunchActivation<ActivateForm>(kind, in, outs, stream);
}

void CudaActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                          CUstream_st* stream) {
  const Tensor* const in[] = {&grad_out, &x};
  const Tensor* const out[] = {&grad_x};
  LaunchActivation<ActivateBackwardForm>(kind, in, out, stream);
}

void CudaActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                       CUstream_st* stream) {
  const Tensor* const in[] = {&gate, &up};
  const Tensor* const outs[] = {&out};
  LaunchActivation<GatedForm>(kind, in, outs, stream);
}

void CudaActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, const Tensor& grad_up, CUstream_st* stream) {
  const Tensor* const in[] = {&grad_out, &gate, &up};
  const Tensor* const out[] = {&grad_gate, &grad_up};
  LaunchActivation<GatedBackwardForm>(kind, in, out, stream);
}

}  // namespace fsdp
