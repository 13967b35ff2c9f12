// SPDX-License-Identifier: Apache-2.0
//
// Causal attention on a CUDA device, in tiles of 64 queries by 64 keys that never leave a block; see nn/ops/layer_ops.h
// for the contract. Scores are computed twice forward: first for each row's maximum and sum, then for its
// probabilities, so that these are rounded exactly as on the host. Sums have a fixed order. For float32, and for
// bfloat16 and float16 under all roundings but kOnline, whose kernels are in cuda_online_attention.h. LayerOps has
// checked the operands; kernels are put on `stream`, of the current device, and errors are the thread's last CUDA
// error.
#ifndef FSDP_NN_CUDA_CUDA_ATTENTION_H_
#define FSDP_NN_CUDA_CUDA_ATTENTION_H_

#include <cstdint>

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// Precondition of the functions below: head_dim is at most this.
constexpr int64_t kMaxCudaHeadDim = 256;

// Writes all of `out`, and of `statistics` the maximum and 1 / sum of each row.
void CudaCausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                         CUstream_st* stream);

// Bytes of device memory that backward needs for intermediate values: a float for each row of scores, and with grouped
// queries the gradients of k and v for each head.
int64_t CudaAttentionBackwardBytes(const AttentionShape& shape);

// Writes all of `grad_qkv`; the probabilities are computed again. `workspace`: CudaAttentionBackwardBytes, used until
// the kernels have run.
void CudaCausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& statistics,
                                 const AttentionShape& shape, const Tensor& grad_qkv, void* workspace,
                                 CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ATTENTION_H_
