// SPDX-License-Identifier: Apache-2.0
//
// LlamaDecoderLayer, one transformer block by Hugging Face's name, and its two halves. The unit of
// ModuleWrapPolicy<LlamaDecoderLayer>. Activations are [B, T, hidden_size]. Precondition of all:
// CheckLlamaConfig(config) is OK.
#ifndef FSDP_MODELS_LLAMA_DECODER_LAYER_H_
#define FSDP_MODELS_LLAMA_DECODER_LAYER_H_

#include <string_view>

#include "fsdp/models/llama_config.h"
#include "fsdp/models/pre_norm_block.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/module.h"
#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/nn/rotary_embedding.h"

namespace fsdp {

// Causal self-attention with rotated queries and keys; groups of heads share keys and values. Input and output are [B,
// T, hidden_size]; kInvalidArgument for an input of another rank. Forward keeps the rotated q, k and v, the table of
// rotations, and one or two float32 for each row and head.
class LlamaAttention final : public Module {
 public:
  // The model owns `rotary`, which outlives this.
  LlamaAttention(const LlamaConfig& config, RotaryEmbedding* rotary);

  std::string_view type_name() const override { return "LlamaAttention"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  // shape_ with the sizes of the batch `x`, [B, T, hidden_size].
  AttentionShape AttentionShapeOf(const Tensor& x) const;

  RotaryEmbedding* const rotary_;
  const AttentionShape shape_;  // without batch and seq_len
  Linear* q_proj_;
  Linear* k_proj_;
  Linear* v_proj_;
  Linear* o_proj_;
};

// The gated feed-forward half: down_proj(activation(gate_proj(x)) * up_proj(x)). Forward keeps the outputs of gate_proj
// and up_proj, [B, T, intermediate_size] each; backward computes the activation again.
class LlamaMlp final : public Module {
 public:
  explicit LlamaMlp(const LlamaConfig& config);

  std::string_view type_name() const override { return "LlamaMLP"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  Linear* gate_proj_;
  Linear* up_proj_;
  Linear* down_proj_;
  const ActivationKind kind_;
};

// y = x + self_attn(input_layernorm(x)); the output is y + mlp(post_attention_layernorm(y)). Both norms are RmsNorm.
// The children are in Hugging Face's order (self_attn, mlp, input_layernorm, ...), which is the order in a state dict.
class LlamaDecoderLayer final : public PreNormBlock {
 public:
  // The model owns `rotary`, which outlives this.
  LlamaDecoderLayer(const LlamaConfig& config, RotaryEmbedding* rotary);

  std::string_view type_name() const override { return "LlamaDecoderLayer"; }
};

}  // namespace fsdp

#endif  // FSDP_MODELS_LLAMA_DECODER_LAYER_H_
