// SPDX-License-Identifier: Apache-2.0
//
// Layer norm and RMS norm on a CUDA device, a warp for each row; see nn/ops/layer_ops.h for the contract and the
// formulas, and cuda_column_sums.h for the gradients of their parameters, which the backward functions here do not
// compute. Operands are right.
#ifndef FSDP_NN_CUDA_CUDA_NORM_H_
#define FSDP_NN_CUDA_CUDA_NORM_H_

#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// `mean` and `rstd` are float64 [rows]. Sums over a row are float32 within a pack of 16 bytes and float64 beyond, in an
// order that depends on the number of columns alone. The variance is computed in a second pass.
void CudaLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd, CUstream_st* stream);
// grad_x alone. Means over a row are in float64; see LayerOps::LayerNormBackward for the formula.
void CudaLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& grad_x, CUstream_st* stream);

// As the two above, without mean and bias; x rstd is rounded to the dtype before the weight.
void CudaRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                 CUstream_st* stream);
void CudaRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_NORM_H_
