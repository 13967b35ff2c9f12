// SPDX-License-Identifier: Apache-2.0
//
// The host's embedding look-up; see nn/ops/layer_ops.h for the contract. Runs immediately on the calling thread.
// Backward sorts the places by token and holds the sums of one row of the table at a time.
#ifndef FSDP_NN_HOST_HOST_EMBEDDING_H_
#define FSDP_NN_HOST_HOST_EMBEDDING_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// tokens int32; table [V, C] and out [..., C] of one dtype. kOutOfRange names a token outside [0, V) and its place.
absl::Status HostEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out);

// grad_table[tokens[n], :] += grad_out[n, :], each row's sum in the order of n (see ColumnSums), rounded once; row
// `padding_idx` stays. float32, bfloat16 or float16. Precondition: HostEmbedding accepted the tokens.
void HostEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_EMBEDDING_H_
