// SPDX-License-Identifier: Apache-2.0
//
// Layer norm and RMS norm on a CUDA device, a team of warps for each row (cuda_row_team.h); see nn/ops/layer_ops.h for
// the contract and the formulas. Operands have been checked.
#ifndef FSDP_NN_CUDA_CUDA_NORM_H_
#define FSDP_NN_CUDA_CUDA_NORM_H_

#include <cstdint>

#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// `mean` and `rstd` are float64 [rows]. Without a residual, `input.sum` is undefined and the norm is of x. Sums over a
// row are float32 within a pack of 16 bytes, and beyond that float64 for float32 rows and float32 for 16-bit rows, in
// an order that depends on the number of columns and the alignment. The variance is computed in a second pass.
void CudaLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd, CUstream_st* stream);

// The same without mean and bias; x rstd is rounded to the dtype before the weight.
void CudaRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                 CUstream_st* stream);

// The operands of backward: of layer norm or, with an undefined mean, of RMS norm. grad_residual may be undefined, else
// it is added to the gradient of x after that gradient has been rounded.
struct CudaNormBackwardOperands {
  Tensor grad_out, x, weight, mean, rstd, grad_residual;
};

// Bytes of device memory that backward over x [rows, columns] needs between its kernels: two float32 for each column
// and block, of at most some 300 blocks up to 10,000 rows.
int64_t NormBackwardBytes(int64_t rows, int64_t columns);

// All gradients in one pass over the rows: grads.x, and sums over rows in float32, of at most 32 rows for each thread;
// a second kernel adds the blocks' sums in float64 to grads.weight and grads.bias, if these are defined. `workspace`:
// NormBackwardBytes, used until the kernels have run.
void CudaNormBackward(const CudaNormBackwardOperands& operands, const NormGrads& grads, float* workspace,
                      CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_NORM_H_
