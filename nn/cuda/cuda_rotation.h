// SPDX-License-Identifier: Apache-2.0
//
// Rotary embedding on a CUDA device; see nn/ops/layer_ops.h for the contract. Operands have been checked. Products are
// rounded one by one, as the operations of Hugging Face's model round them.
#ifndef FSDP_NN_CUDA_CUDA_ROTATION_H_
#define FSDP_NN_CUDA_CUDA_ROTATION_H_

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// Each puts a kernel on `stream`; backward rotates by the negated angle.
void CudaRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                   const AttentionShape& shape, const Tensor& qkv, CUstream_st* stream);
void CudaRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                           const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ROTATION_H_
