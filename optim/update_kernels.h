// SPDX-License-Identifier: Apache-2.0
//
// The element loops of the optimizers on the host: one fused pass over parameter, gradient and state, memory-bound.
// Each operation is rounded to float32 separately (no fused multiply-add), so every instruction set gives the same
// bits. The scalars are computed in float64 and rounded to float32 once, as PyTorch does. Parameters and states of
// bfloat16 and float16 are read, and rounded when the step is done, once, as by PyTorch's fused optimizers.
#ifndef FSDP_OPTIM_UPDATE_KERNELS_H_
#define FSDP_OPTIM_UPDATE_KERNELS_H_

#include <array>
#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// torch.optim.AdamW, one step. With g the gradient:
//   m += (g - m) * one_minus_beta1;  v = v * beta2 + one_minus_beta2 * g * g;
//   p += negative_step_size * m / (sqrt(v) / sqrt_bias_correction2 + eps) + negative_decay * p
// PyTorch multiplies p by 1 - lr * weight_decay first, and both are rounded. That factor is near 1 and so off by up to
// 3e-8, the same way in every element and step, which shrinks or grows the weights: after 45 steps of golden case
// gpt2_full_shard_w3 it is 9e-5 of an ill-conditioned step's gradient norm. Here p is rounded once, and nothing is
// biased.
struct AdamWScalars {
  float negative_decay;   // -lr * weight_decay
  float one_minus_beta1;  // torch.lerp changes its formula from 0.5 on; so do we
  float beta2;
  float one_minus_beta2;
  float negative_step_size;  // -lr / bias_correction1
  float sqrt_bias_correction2;
  float eps;
};

// The two options of torch.optim.Adam that change AdamW's formula.
struct AdamVariant {
  // Added to the gradient, times p, before all else: Adam's decay, which is not decoupled.
  float weight_decay = 0;

  // amsgrad: the largest v so far, of the parameter's dtype, which takes the place of v under the root; null: v itself.
  void* max_exp_avg_sq = nullptr;
};

// torch.optim.SGD, one step. With g the gradient and b the momentum buffer:
//   g += weight_decay * p;  b = first ? g : b * momentum + one_minus_dampening * g;
//   g = nesterov ? g + momentum * b : b;  p += negative_lr * g
// Without momentum (0) b is not touched and may be null.
struct SgdScalars {
  float weight_decay;
  float momentum;
  float one_minus_dampening;
  float negative_lr;
  bool nesterov;
  bool first;  // this parameter has no momentum yet
};

// Lion, one step. With g the gradient and m the momentum:
//   p += negative_lr * sign(m * beta1 + one_minus_beta1 * g) + negative_decay * p
//   m = m * beta2 + one_minus_beta2 * g
// The sign of 0 is 0, and of a NaN a NaN. As in AdamW p is rounded once.
struct LionScalars {
  float negative_decay;  // -lr * weight_decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float negative_lr;
};

// Additional work of the same pass.
struct UpdateExtras {
  // Gradients are multiplied by it and rounded to their dtype, as by TensorOps::ScaleBy before.
  float grad_factor = 1;

  // The new parameters rounded to bfloat16 are written here, of float32 parameters; null: not written.
  uint16_t* compute_copy = nullptr;

  // Random numbers for each element of the parameter and of the states in the order of the function's arguments; those
  // of bfloat16 are rounded by them (RoundAtRandom). max_exp_avg_sq shares exp_avg_sq's, so that it is the largest one
  // that was stored. Null: rounded to the nearest.
  std::array<const uint32_t*, 3> random = {};
};

// One parameter's slice. Pointers need no alignment; the arrays must not overlap.
struct UpdateSlice {
  int64_t numel;

  // Of float32, bfloat16 or float16.
  DType grad_dtype;
  const void* grad;

  // Also of the states: float32, or the gradient's dtype.
  DType dtype;
  void* parameter;
};

void UpdateAdamW(const AdamWScalars& scalars, const UpdateSlice& slice, void* exp_avg, void* exp_avg_sq,
                 const UpdateExtras& extras = {}, const AdamVariant& variant = {});
void UpdateSgd(const SgdScalars& scalars, const UpdateSlice& slice, void* momentum_buffer,
               const UpdateExtras& extras = {});
void UpdateLion(const LionScalars& scalars, const UpdateSlice& slice, void* exp_avg, const UpdateExtras& extras = {});

}  // namespace fsdp

#endif  // FSDP_OPTIM_UPDATE_KERNELS_H_
