// SPDX-License-Identifier: Apache-2.0
//
// CrossAttention: multi-head attention of one sequence to another, as decoders read an encoder (Vaswani et al., arXiv
// 1706.03762, section 3.2), with the names of Hugging Face's BartAttention and WhisperAttention: q_proj, k_proj,
// v_proj, out_proj. It takes x [B, T, C], memory [B, S, M] and key_mask int32 [B, S] (1: seen, 0: padding; undefined:
// all are seen), and gives [B, T, C]:
//
//   FSDP_ASSIGN_OR_RETURN(TensorList out, attention->Forward({x, memory, key_mask}, tape));
//
// With memory = x it is bidirectional self-attention. Backward gives the gradients of x and memory, and an undefined
// one for the mask.
#ifndef FSDP_NN_CROSS_ATTENTION_H_
#define FSDP_NN_CROSS_ATTENTION_H_

#include <cstdint>
#include <string_view>

#include "fsdp/nn/linear.h"
#include "fsdp/nn/module.h"
#include "fsdp/nn/ops/layer_ops.h"

namespace fsdp {

struct CrossAttentionOptions {
  int64_t embed_dim = 0;     // C
  int64_t memory_dim = 0;    // M; 0: embed_dim
  int64_t num_heads = 0;     // divides embed_dim
  int64_t num_kv_heads = 0;  // 0: num_heads; fewer, a divisor of it: each key and value serves a group of queries
  bool bias = true;          // of the four projections
  Initializer initializer = Initializer::Normal(0, 0.02f);  // of their weights
};

class CrossAttention final : public Module {
 public:
  // Forward returns kInvalidArgument for options that do not fit.
  explicit CrossAttention(const CrossAttentionOptions& options);

  std::string_view type_name() const override { return "CrossAttention"; }

 private:
  absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape) override;
  absl::StatusOr<TensorList> DoBackwardList(const TensorList& grad_outputs, Tape& tape) override;

  absl::StatusOr<CrossAttentionShape> ShapeOf(const TensorList& inputs) const;
  CrossAttentionShape SizesOf(int64_t batch, int64_t q_len, int64_t kv_len) const;

  const CrossAttentionOptions options_;
  Linear* q_proj_;
  Linear* k_proj_;
  Linear* v_proj_;
  Linear* out_proj_;
};

}  // namespace fsdp

#endif  // FSDP_NN_CROSS_ATTENTION_H_
