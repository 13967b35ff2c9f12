// SPDX-License-Identifier: Apache-2.0
//
// The kernels around the matrix product of a convolution (nn/ops/layer_ops.h) on a CUDA device.
#ifndef FSDP_NN_CUDA_CUDA_FOLD_H_
#define FSDP_NN_CUDA_CUDA_FOLD_H_

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// Each puts one kernel on `stream`, of the current device; an error of the launch is the thread's last CUDA error.
// Operands have been checked. Tensors of no elements launch nothing.
void CudaUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns, CUstream_st* stream);

void CudaFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_FOLD_H_
