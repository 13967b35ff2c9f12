// SPDX-License-Identifier: Apache-2.0
//
// A single kernel template, Map, serves all elementwise operations: a form says how many values it takes and makes, and
// computes them in float32; Map loads packs of 16 bytes, widens, calls the form, rounds once and stores. These kernels
// are bound by memory, so the formulas need not be fast, and value and derivative are computed together even where one
// is wanted (the compiler drops the other).

#include <algorithm>
#include <iterator>

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_elementwise.h"

namespace fsdp {
namespace {

// An activation's value and its value's derivative at one x.
struct Slope {
  float value;
  float derivative;
};

// With e an exponential: x / (1 + e), and the derivative of 1 / (1 + e) = s being s (1 - s) = s e s times `rate`. A
// finite e keeps its products numbers.
__device__ Slope Sigmoidal(float x, float e, float rate) {
  e = fminf(e, 3.0e38f);
  const float s = 1 / (1 + e);
  return {x / (1 + e), s + x * rate * (s * (e * s))};
}

__device__ Slope GeluTanh(float x) {
  constexpr float kCubic = 0.044715f;
  constexpr float kTwoRootTwoOverPi = 2 * 0.79788456080286535588f;
  const float minus_two_u = -kTwoRootTwoOverPi * (x + kCubic * (x * x) * x);
  return Sigmoidal(x, expf(minus_two_u), kTwoRootTwoOverPi * (1 + 3 * kCubic * (x * x)));
}

__device__ Slope GeluErf(float x) {
  constexpr float kRootHalf = 0.70710678118654752440f;
  constexpr float kInverseRootTwoPi = 0.39894228040143267794f;
  const float cdf = 0.5f * erfcf(-x * kRootHalf);
  return {x * cdf, cdf + x * (kInverseRootTwoPi * expf(-0.5f * x * x))};
}

__device__ Slope Silu(float x) { return Sigmoidal(x, expf(-x), 1); }

// A NaN passes.
__device__ Slope Relu(float x) { return {x < 0 ? 0 : x, x <= 0 ? 0.0f : 1.0f}; }

// The kind is the same for all threads, so the branch does not diverge, and its cost is hidden by the accesses to
// memory.
__device__ Slope SlopeOf(ActivationKind kind, float x) {
  switch (kind) {
    case ActivationKind::kGeluTanh:
      return GeluTanh(x);
    case ActivationKind::kGeluErf:
      return GeluErf(x);
    case ActivationKind::kRelu:
      return Relu(x);
    case ActivationKind::kSilu:
      return Silu(x);
  }
  return {x, x};
}

// The forms: each computes kOut values from kIn.

struct AddForm {
  static constexpr int kIn = 2, kOut = 1;
  template <typename T>
  __device__ void Run(const float* in, float* out) const {
    out[0] = in[0] + in[1];
  }
};

struct ActivateForm {
  static constexpr int kIn = 1, kOut = 1;
  ActivationKind kind;
  template <typename T>
  __device__ void Run(const float* in, float* out) const {
    out[0] = SlopeOf(kind, in[0]).value;
  }
};

// From grad_out and x.
struct ActivateBackwardForm {
  static constexpr int kIn = 2, kOut = 1;
  ActivationKind kind;
  template <typename T>
  __device__ void Run(const float* in, float* out) const {
    out[0] = in[0] * SlopeOf(kind, in[1]).derivative;
  }
};

// From gate and up.
struct GatedForm {
  static constexpr int kIn = 2, kOut = 1;
  ActivationKind kind;
  template <typename T>
  __device__ void Run(const float* in, float* out) const {
    out[0] = RoundTo<T>(SlopeOf(kind, in[0]).value) * in[1];
  }
};

// From grad_out, gate and up: grad_gate and grad_up.
struct GatedBackwardForm {
  static constexpr int kIn = 3, kOut = 2;
  ActivationKind kind;
  template <typename T>
  __device__ void Run(const float* in, float* out) const {
    const Slope slope = SlopeOf(kind, in[1]);
    out[0] = RoundTo<T>(in[0] * in[2]) * slope.derivative;
    out[1] = in[0] * RoundTo<T>(slope.value);
  }
};

template <typename T, typename Form>
struct Operands {
  const T* in[Form::kIn];
  T* out[Form::kOut];
};

template <int N, typename T, typename Form>
__global__ void Map(Operands<T, Form> operands, PackedRange range, Form form) {
  ForEachPack<N>(range, [&](auto size, int64_t i) {
    constexpr int kSize = decltype(size)::kSize;
    Pack<T, kSize> in[Form::kIn], out[Form::kOut];
#pragma unroll
    for (int o = 0; o < Form::kIn; ++o) in[o] = LoadPack<kSize>(operands.in[o] + i);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      float values[Form::kIn], results[Form::kOut];
#pragma unroll
      for (int o = 0; o < Form::kIn; ++o) values[o] = Widen<float>(in[o].at[k]);
      form.template Run<T>(values, results);
#pragma unroll
      for (int o = 0; o < Form::kOut; ++o) out[o].at[k] = Round<T>(results[o]);
    }
#pragma unroll
    for (int o = 0; o < Form::kOut; ++o) StorePack(out[o], operands.out[o] + i);
  });
}

template <typename Form>
void LaunchMap(Form form, const Tensor* const (&in)[Form::kIn], const Tensor* const (&out)[Form::kOut],
               CUstream_st* stream) {
  if (out[0]->numel() == 0) return;
  WithActivationType(out[0]->dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    Operands<T, Form> operands;
    // All have one element size, so those that come first stand for the ones that a form lacks.
    const void* data[5];
    std::fill(std::begin(data), std::end(data), out[0]->data());
    for (int o = 0; o < Form::kIn; ++o) data[o] = operands.in[o] = static_cast<const T*>(in[o]->data());
    for (int o = 0; o < Form::kOut; ++o) data[3 + o] = operands.out[o] = static_cast<T*>(out[o]->data());
    constexpr size_t kSize = sizeof(T);
    const PackedRange range =
        MakePackedRange(kPack, out[0]->numel(),
                        {{data[0], kSize}, {data[1], kSize}, {data[2], kSize}, {data[3], kSize}, {data[4], kSize}});
    Launch(Map<kPack, T, Form>, Blocks(range.threads(kPack)), kThreads, 0, stream, operands, range, form);
  });
}

}  // namespace

void CudaAdd(const Tensor& a, const Tensor& b, const Tensor& out, CUstream_st* stream) {
  LaunchMap(AddForm(), {&a, &b}, {&out}, stream);
}

void CudaActivate(ActivationKind kind, const Tensor& x, const Tensor& out, CUstream_st* stream) {
  LaunchMap(ActivateForm{kind}, {&x}, {&out}, stream);
}

void CudaActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                          CUstream_st* stream) {
  LaunchMap(ActivateBackwardForm{kind}, {&grad_out, &x}, {&grad_x}, stream);
}

void CudaActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                       CUstream_st* stream) {
  LaunchMap(GatedForm{kind}, {&gate, &up}, {&out}, stream);
}

void CudaActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, const Tensor& grad_up, CUstream_st* stream) {
  LaunchMap(GatedBackwardForm{kind}, {&grad_out, &gate, &up}, {&grad_gate, &grad_up}, stream);
}

}  // namespace fsdp
