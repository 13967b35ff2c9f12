// SPDX-License-Identifier: Apache-2.0
//
// Causal attention in 16 bits on a CUDA device under AttentionRounding::kOnline, after FlashAttention-2 (arXiv
// 2307.08691): one pass over the keys forward, and backward a kernel for grad_q and one for grad_k and grad_v, so that
// every sum has one owner and one order. cuda_attention.h has the kernels for float32 and for the other roundings.
// LayerOps has checked the operands; kernels are put on `stream`, of the current device, and errors are the thread's
// last CUDA error.
#ifndef FSDP_NN_CUDA_CUDA_ONLINE_ATTENTION_H_
#define FSDP_NN_CUDA_CUDA_ONLINE_ATTENTION_H_

#include <cstdint>

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// Precondition of both: bfloat16 or float16, and head_dim at most kMaxCudaHeadDim. Writes all of `out` and of
// `statistics`.
void CudaOnlineAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                         CUstream_st* stream);

// The inputs of backward: forward's operands and results, and the gradient of its output.
struct OnlineAttentionResults {
  Tensor grad_out, qkv, out, statistics;
};

// Bytes of device memory that backward needs for intermediate values: two floats for each row of scores.
int64_t CudaOnlineAttentionBackwardBytes(const AttentionShape& shape);

// Writes all of `grad_qkv`. `workspace`: CudaOnlineAttentionBackwardBytes, aligned to 8, used until the kernels have
// run.
void CudaOnlineAttentionBackward(const OnlineAttentionResults& results, const AttentionShape& shape,
                                 const Tensor& grad_qkv, void* workspace, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ONLINE_ATTENTION_H_
