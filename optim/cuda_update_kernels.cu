// SPDX-License-Identifier: Apache-2.0

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/cuda/slice_batch.h"
#include "fsdp/optim/cuda_update_kernels.h"
#include "fsdp/optim/grad_scale.h"

namespace fsdp {
namespace {

// All arithmetic is by intrinsics (__fadd_rn, ...), each of which rounds: nvcc would fuse plain multiplications and
// additions, and the bits would no longer be the host's. A slice is one parameter's part of a step; SliceLauncher runs
// many slices in one launch, and Run handles N elements at i, a full pack if memory is aligned for it.

// UpdateExtras on the GPU.
struct Extras {
  const float* grad_factor;  // null: 1
  const float* found_inf;    // null: 0
  __nv_bfloat16* compute_copy;

  __device__ float Factor() const { return grad_factor != nullptr ? __ldg(grad_factor) : 1.0f; }

  // Parameters and state stay unchanged. Read after the computation, which thus waits for no other load.
  __device__ bool Skips() const { return found_inf != nullptr && __ldg(found_inf) != 0; }

  template <int N>
  __device__ void Copy(const Pack<float, N>& parameters, int64_t i) const {
    if (compute_copy == nullptr) return;
    Pack<__nv_bfloat16, N> rounded;
#pragma unroll
    for (int k = 0; k < N; ++k) rounded.at[k] = Round<__nv_bfloat16>(parameters.at[k]);
    StorePack(rounded, compute_copy + i);
  }
};

// A gradient times the factor, rounded to the gradient's dtype, as if ScaleBy had stored it in between.
template <typename G>
__device__ inline float Times(G grad, float factor) {
  return factor == 1 ? Widen<float>(grad) : RoundTo<G>(__fmul_rn(Widen<float>(grad), factor));
}

// AdamWLoop of update_kernels.cc, operation by operation. Threads keep their elements in registers from the loads to
// the stores, so each array is read once and written once: at 16 bytes read and 12 written for each float32 element,
// the kernel is bound by memory and not by its division and root.
template <typename G>
struct AdamWSlice {
  static constexpr int kPack = 4;  // four float32 are as much as one access moves

  AdamWScalars scalars;
  const AdamWScalars* live_scalars;  // null: `scalars`
  float* parameter;
  const G* grad;
  float* exp_avg;
  float* exp_avg_sq;
  Extras extras;
  PackedRange range;

  template <int N>
  __device__ void Run(int64_t i) const {
    const AdamWScalars s = live_scalars != nullptr ? *live_scalars : scalars;
    const Pack<float, N> old = LoadPack<N>(parameter + i);
    Pack<float, N> p = old;
    const float factor = extras.Factor();
    const Pack<G, N> grads = LoadPack<N>(grad + i);
    Pack<float, N> m = LoadPack<N>(exp_avg + i);
    Pack<float, N> v = LoadPack<N>(exp_avg_sq + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float g = Times(grads.at[k], factor);
      const float difference = __fsub_rn(g, m.at[k]);
      // The two forms of torch.lerp: the second is exact at the end that a large weight approaches.
      m.at[k] = s.one_minus_beta1 < 0.5f ? __fadd_rn(m.at[k], __fmul_rn(s.one_minus_beta1, difference))
                                         : __fsub_rn(g, __fmul_rn(difference, __fsub_rn(1.0f, s.one_minus_beta1)));
      v.at[k] = __fadd_rn(__fmul_rn(v.at[k], s.beta2), __fmul_rn(__fmul_rn(s.one_minus_beta2, g), g));
      const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v.at[k]), s.sqrt_bias_correction2), s.eps);
      const float step = __fdiv_rn(__fmul_rn(s.negative_step_size, m.at[k]), denominator);
      p.at[k] = __fadd_rn(p.at[k], __fadd_rn(step, __fmul_rn(s.negative_decay, p.at[k])));
    }
    const bool skips = extras.Skips();
    if (!skips) {
      StorePack(m, exp_avg + i);
      StorePack(v, exp_avg_sq + i);
      StorePack(p, parameter + i);
    }
    extras.Copy(skips ? old : p, i);  // also if skipped: the copy may have been stale
  }
};

// SgdLoop of update_kernels.cc. Without momentum the buffer is neither read nor written and may be null.
template <typename G>
struct SgdSlice {
  static constexpr int kPack = 4;

  SgdScalars s;
  float* parameter;
  const G* grad;
  float* momentum_buffer;
  Extras extras;
  PackedRange range;

  template <int N>
  __device__ void Run(int64_t i) const {
    const Pack<float, N> old = LoadPack<N>(parameter + i);
    Pack<float, N> p = old;
    const float factor = extras.Factor();
    const Pack<G, N> grads = LoadPack<N>(grad + i);
    Pack<float, N> b{};
    // The first step sets the buffer without reading it.
    if (s.momentum != 0 && !s.first) b = LoadPack<N>(momentum_buffer + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float g = Times(grads.at[k], factor);
      if (s.weight_decay != 0) g = __fadd_rn(g, __fmul_rn(s.weight_decay, p.at[k]));
      if (s.momentum != 0) {
        b.at[k] = s.first ? g : __fadd_rn(__fmul_rn(b.at[k], s.momentum), __fmul_rn(s.one_minus_dampening, g));
        g = s.nesterov ? __fadd_rn(g, __fmul_rn(s.momentum, b.at[k])) : b.at[k];
      }
      p.at[k] = __fadd_rn(p.at[k], __fmul_rn(s.negative_lr, g));
    }
    const bool skips = extras.Skips();
    if (!skips) {
      if (s.momentum != 0) StorePack(b, momentum_buffer + i);
      StorePack(p, parameter + i);
    }
    // Also if skipped, as above.
    extras.Copy(skips ? old : p, i);
  }
};

// One thread. The products and the quotient are in float64, which nvcc does not fuse: no sum follows.
__global__ void AdvanceGradScale(GradScale* state, const float* found_inf) {
  GradScale advanced = *state;
  advanced.Advance(*found_inf != 0);
  *state = advanced;
}

Extras ExtrasOf(const TensorExtras& extras) {
  return {extras.grad_factor.defined() ? extras.grad_factor.data_as<const float>() : nullptr,
          extras.found_inf.defined() ? extras.found_inf.data_as<const float>() : nullptr,
          extras.compute_copy.defined() ? extras.compute_copy.data_as<__nv_bfloat16>() : nullptr};
}

template <typename G>
AdamWSlice<G> SliceOf(const AdamWUpdate& u) {
  const Extras extras = ExtrasOf(u.extras);
  return {u.scalars,
          static_cast<const AdamWScalars*>(u.live_scalars.data()),
          u.data.data_as<float>(),
          u.grad.data_as<const G>(),
          u.exp_avg.data_as<float>(),
          u.exp_avg_sq.data_as<float>(),
          extras,
          MakePackedRange(AdamWSlice<G>::kPack, u.grad.numel(),
                          {{u.data.data(), sizeof(float)},
                           {u.grad.data(), sizeof(G)},
                           {u.exp_avg.data(), sizeof(float)},
                           {u.exp_avg_sq.data(), sizeof(float)},
                           {extras.compute_copy, sizeof(__nv_bfloat16)}})};
}

template <typename G>
SgdSlice<G> SliceOf(const SgdUpdate& u) {
  const Extras extras = ExtrasOf(u.extras);
  return {u.scalars,
          u.data.data_as<float>(),
          u.grad.data_as<const G>(),
          u.momentum_buffer.data_as<float>(),
          extras,
          MakePackedRange(SgdSlice<G>::kPack, u.grad.numel(),
                          {{u.data.data(), sizeof(float)},
                           {u.grad.data(), sizeof(G)},
                           {u.momentum_buffer.data(), sizeof(float)},
                           {extras.compute_copy, sizeof(__nv_bfloat16)}})};
}

// Updates the slices whose gradients have `grad_dtype`, the dtype of G.
template <template <typename> typename Slice, typename G, typename Update>
void LaunchUpdates(const std::vector<Update>& updates, DType grad_dtype, CUstream_st* stream) {
  // One launch for each dtype of gradients, because the dtype is a template argument.
  SliceLauncher<Slice<G>> launcher(stream);
  for (const Update& update : updates) {
    if (update.grad.dtype() == grad_dtype && update.grad.numel() > 0) launcher.Add(SliceOf<G>(update));
  }
  launcher.Flush();
}

}  // namespace

void CudaUpdateAdamW(const std::vector<AdamWUpdate>& updates, CUstream_st* stream) {
  LaunchUpdates<AdamWSlice, float>(updates, DType::kFloat32, stream);
  LaunchUpdates<AdamWSlice, __nv_bfloat16>(updates, DType::kBFloat16, stream);
  LaunchUpdates<AdamWSlice, __half>(updates, DType::kFloat16, stream);
}

void CudaUpdateGradScale(const Tensor& state, const Tensor& found_inf, CUstream_st* stream) {
  Launch(AdvanceGradScale, 1, 1, 0, stream, static_cast<GradScale*>(state.data()), found_inf.data_as<const float>());
}

void CudaUpdateSgd(const std::vector<SgdUpdate>& updates, CUstream_st* stream) {
  LaunchUpdates<SgdSlice, float>(updates, DType::kFloat32, stream);
  LaunchUpdates<SgdSlice, __nv_bfloat16>(updates, DType::kBFloat16, stream);
  LaunchUpdates<SgdSlice, __half>(updates, DType::kFloat16, stream);
}

}  // namespace fsdp
