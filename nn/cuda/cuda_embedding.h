// SPDX-License-Identifier: Apache-2.0
//
// Embedding on a CUDA device; see nn/ops/layer_ops.h for the contract. Operands have been checked except the tokens'
// values.
#ifndef FSDP_NN_CUDA_CUDA_EMBEDDING_H_
#define FSDP_NN_CUDA_CUDA_EMBEDDING_H_

#include <cstdint>
#include <optional>

#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

struct KernelRefusal;

// out[n, :] = table[tokens[n], :], a warp for each token. A token beyond the table is written to `refusal`, and its row
// of `out` is not written.
void CudaEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out, KernelRefusal* refusal,
                   CUstream_st* stream);

// Bytes of device memory that the gradient needs: 16 for each token, and a float32 row for each 16 or 128 tokens of
// float32 or 16-bit gradients.
int64_t EmbeddingBackwardBytes(int64_t num_tokens, int64_t columns, DType dtype);

// grad_table[tokens[n], :] += grad_out[n, :]. The places of the tokens are sorted by token; the rows of each token are
// added in the order of n, tokens and runs of rows in parallel. Tokens beyond the table, which forward refused, are
// skipped. `workspace`: EmbeddingBackwardBytes. No atomics, so the same bits in every run.
void CudaEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table, void* workspace, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_EMBEDDING_H_
