// SPDX-License-Identifier: Apache-2.0
//
// The host's RMS norm; see nn/ops/layer_ops.h for the contract. Runs at once on the calling thread.
#ifndef FSDP_NN_HOST_HOST_RMS_NORM_H_
#define FSDP_NN_HOST_HOST_RMS_NORM_H_

#include "fsdp/tensor/tensor.h"

namespace fsdp {

// x [M, C], weight [C], out [M, C] of one dtype, float32 or bfloat16; rstd float64 [M].
void HostRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd);

// grad_x = ..., grad_weight += ...; the latter may be undefined.
void HostRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, const Tensor& grad_weight);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_RMS_NORM_H_
