// SPDX-License-Identifier: Apache-2.0
//
// The host's layer norm and RMS norm; see nn/ops/layer_ops.h for the contract. They run immediately, backward on up to
// `threads` threads, each on an interval of the rows.
#ifndef FSDP_NN_HOST_HOST_NORM_H_
#define FSDP_NN_HOST_HOST_NORM_H_

#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// x [M, C], weight and bias [C], out [M, C] of one dtype, float32, bfloat16 or float16; mean and rstd float64 [M].
void HostLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd);

// Gradients as at LayerOps::LayerNormBackward; mean and rstd are forward's results. grad_weight and grad_bias may be
// undefined.
void HostLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& grad_x, const ParameterGrad& grad_weight,
                           const ParameterGrad& grad_bias, int threads);

// x [M, C], weight [C], out [M, C] of one dtype, float32, bfloat16 or float16; rstd float64 [M]. x rstd is rounded to
// the dtype before it is multiplied by the weight.
void HostRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd);

// Gradients as at LayerOps::RmsNormBackward; grad_weight may be undefined.
void HostRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, const ParameterGrad& grad_weight, int threads);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_NORM_H_
