// SPDX-License-Identifier: Apache-2.0
//
// The host's attention between two sequences; see nn/ops/layer_ops.h for the contract. Blocks of 128 queries by all
// keys, by two products forward and five backward, with plain loops in between. Runs immediately on up to `threads`
// threads; each thread has its own heads, and one thread computes a product.
#ifndef FSDP_NN_HOST_HOST_CROSS_ATTENTION_H_
#define FSDP_NN_HOST_HOST_CROSS_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "fsdp/nn/host/host_matmul.h"
#include "fsdp/nn/ops/layer_ops.h"

namespace fsdp {

// Bytes of working memory for either direction: O(128 * kv_len + kv_len * head_dim) elements for each thread, whatever
// the batch and the number of heads. The caller provides it, uninitialised and aligned to 64.
int64_t CrossAttentionScratchBytes(const CrossAttentionShape& shape, DType dtype, int threads);

// Returns a product's error, and outputs may then be half written. `matmul` uses one thread, `scratch` has
// CrossAttentionScratchBytes.
absl::Status HostCrossAttention(const HostMatmul& matmul, const CrossAttentionOperands& operands,
                                const CrossAttentionShape& shape, const Tensor& out, const Tensor& statistics,
                                const Tensor& scratch, int threads);

absl::Status HostCrossAttentionBackward(const HostMatmul& matmul, const Tensor& grad_out,
                                        const CrossAttentionOperands& operands, const Tensor& statistics,
                                        const CrossAttentionShape& shape, const CrossAttentionGrads& grads,
                                        const Tensor& scratch, int threads);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_CROSS_ATTENTION_H_
