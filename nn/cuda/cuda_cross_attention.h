// SPDX-License-Identifier: Apache-2.0
//
// Attention between two sequences (nn/ops/layer_ops.h) on a CUDA device. The kernels are simple, a block for each row,
// and not tiled like causal attention's: cross attention is a small part of the models that have it.
#ifndef FSDP_NN_CUDA_CUDA_CROSS_ATTENTION_H_
#define FSDP_NN_CUDA_CUDA_CROSS_ATTENTION_H_

#include <cstdint>

#include "fsdp/nn/ops/layer_ops.h"

struct CUstream_st;

namespace fsdp {

// The limit of the shared memory in which a block keeps a row of scores.
constexpr int64_t kMaxCrossAttentionLength = 8192;

// Each puts its kernels on `stream`, of the current device; an error of a launch is the thread's last CUDA error.
// Operands have been checked, q_len and kv_len are at most kMaxCrossAttentionLength and head_dim at most
// kMaxCudaHeadDim.
void CudaCrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape, const Tensor& out,
                        const Tensor& statistics, CUstream_st* stream);

// `memory` has CrossAttentionBackwardBytes.
void CudaCrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                const Tensor& statistics, const CrossAttentionShape& shape,
                                const CrossAttentionGrads& grads, float* memory, CUstream_st* stream);

int64_t CrossAttentionBackwardBytes(const CrossAttentionShape& shape);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_CROSS_ATTENTION_H_
