// SPDX-License-Identifier: Apache-2.0
//
// The host's causal attention; see nn/ops/layer_ops.h for the contract. Blocks of 128 queries by the keys that they can
// see, so that little is computed only to be masked, each by two products forward and five backward on strided views of
// q, k and v. Runs immediately on up to `threads` threads; each thread has its own heads, and one thread computes a
// product. The bits depend on the values, the shape and the inputs that HostMatmul's bits depend on, never on
// `threads`.
#ifndef FSDP_NN_HOST_HOST_ATTENTION_H_
#define FSDP_NN_HOST_HOST_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "fsdp/nn/host/host_matmul.h"
#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Bytes of working memory for either direction: O(128 * seq_len + seq_len * head_dim) elements for each thread,
// whatever the batch and the number of heads. The caller provides it, uninitialised and aligned to 64.
int64_t AttentionScratchBytes(const AttentionShape& shape, DType dtype, int threads);

// Returns a product's error, and outputs may then be half written. `matmul` uses one thread, `scratch` has
// AttentionScratchBytes.
absl::Status HostCausalAttention(const HostMatmul& matmul, const Tensor& qkv, const AttentionShape& shape,
                                 const Tensor& out, const Tensor& statistics, const Tensor& scratch, int threads);

// The operands of backward; `out` only under AttentionRounding::kOnline.
struct AttentionBackwardOperands {
  Tensor grad_out, qkv, out, statistics;
};
absl::Status HostCausalAttentionBackward(const HostMatmul& matmul, const AttentionBackwardOperands& operands,
                                         const AttentionShape& shape, const Tensor& grad_qkv, const Tensor& scratch,
                                         int threads);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_ATTENTION_H_
