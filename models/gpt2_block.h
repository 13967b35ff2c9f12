// SPDX-License-Identifier: Apache-2.0
//
// Gpt2Block, one transformer block (Hugging Face's GPT2Block), and its two halves. The unit of
// ModuleWrapPolicy<Gpt2Block>. Activations are [B, T, n_embd]. Precondition of all: CheckGpt2Config(config) is OK.
#ifndef FSDP_MODELS_GPT2_BLOCK_H_
#define FSDP_MODELS_GPT2_BLOCK_H_

#include <cstdint>
#include <string_view>

#include "fsdp/models/gpt2_config.h"
#include "fsdp/models/pre_norm_block.h"
#include "fsdp/nn/activation.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// Causal self-attention: c_attn computes q, k and v, c_proj projects the joined heads. `layer_index`, from 0, counts
// for scale_attn_by_inverse_layer_idx. kInvalidArgument for an input that is not of rank 3. Forward keeps q, k and v,
// and one or two float32 for each row and head.
class Gpt2Attention final : public Module {
 public:
  Gpt2Attention(const Gpt2Config& config, int64_t layer_index);

  std::string_view type_name() const override { return "GPT2Attention"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  // The attention of a batch of activations; x is [B, T, n_embd].
  AttentionShape AttentionShapeOf(const Tensor& x) const;

  Conv1D* c_attn_;
  Conv1D* c_proj_;
  int64_t num_heads_;
  float scale_;
  AttentionRounding rounding_;
};

// The feed-forward half: c_proj(activation(c_fc(x))), n_inner wide (by default 4 * n_embd). Weights are Conv1D's, [in,
// out], as in Hugging Face's GPT-2, and not Linear's [out, in].
class Gpt2Mlp final : public Module {
 public:
  explicit Gpt2Mlp(const Gpt2Config& config);

  std::string_view type_name() const override { return "GPT2MLP"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  Conv1D* c_fc_;
  Conv1D* c_proj_;
  Activation* act_;
};

// y = x + attn(ln_1(x)); the output is y + mlp(ln_2(y)). Both norms are LayerNorm with a bias.
class Gpt2Block final : public PreNormBlock {
 public:
  Gpt2Block(const Gpt2Config& config, int64_t layer_index);

  std::string_view type_name() const override { return "GPT2Block"; }
};

}  // namespace fsdp

#endif  // FSDP_MODELS_GPT2_BLOCK_H_
