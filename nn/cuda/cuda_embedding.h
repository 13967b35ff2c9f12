// SPDX-License-Identifier: Apache-2.0
//
// Embedding on a CUDA device; see nn/ops/layer_ops.h for the contract. Operands are right but for the tokens' values.
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

// Bytes of device memory that the gradient needs for `num_tokens` tokens. 8 bytes for each token.
int64_t EmbeddingBackwardBytes(int64_t num_tokens);

// grad_table[tokens[n], :] += grad_out[n, :]. A block per token and run of columns: the first occurrence of a token
// adds up the rows of all its occurrences, in order. Tokens beyond the table, which forward refused, are skipped.
// `workspace`: EmbeddingBackwardBytes. O(tokens^2) comparisons at worst, no atomics, so the same bits in every run.
void CudaEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table, void* workspace, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_EMBEDDING_H_
