// SPDX-License-Identifier: Apache-2.0
//
// The elementwise kernels of nn/ops/layer_ops.h on a CUDA device. Each puts one kernel on `stream`, of the current
// device; an error of the launch is the thread's last CUDA error. Operands have been checked, and all have one dtype,
// at any element offset.
#ifndef FSDP_NN_CUDA_CUDA_ELEMENTWISE_H_
#define FSDP_NN_CUDA_CUDA_ELEMENTWISE_H_

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// Formulas and roundings as in nn/ops/layer_ops.h. `out` may be an input. Tensors of no elements launch nothing.
void CudaAdd(const Tensor& a, const Tensor& b, const Tensor& out, CUstream_st* stream);

// out = f(x), and grad_x = grad_out * f'(x).
void CudaActivate(ActivationKind kind, const Tensor& x, const Tensor& out, CUstream_st* stream);
void CudaActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                          CUstream_st* stream);

// out = f(gate) * up, with f(gate) rounded to the dtype, as PyTorch's two operations round it.
void CudaActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                       CUstream_st* stream);
// grad_gate = grad_out * up * f'(gate), the first product rounded to the dtype; grad_up = grad_out * f(gate), with
// f(gate) rounded.
void CudaActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, const Tensor& grad_up, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ELEMENTWISE_H_
