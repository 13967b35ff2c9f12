// SPDX-License-Identifier: Apache-2.0
//
// The dropout kernel of nn/ops/layer_ops.h on a CUDA device. It drops the same elements as the host's kernel.
#ifndef FSDP_NN_CUDA_CUDA_DROPOUT_H_
#define FSDP_NN_CUDA_CUDA_DROPOUT_H_

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// Puts one kernel on `stream`, of the current device; an error of the launch is the thread's last CUDA error. Operands
// have been checked, at any element offset; out may be x. Tensors of no elements launch nothing.
void CudaDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_DROPOUT_H_
