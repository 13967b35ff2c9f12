// SPDX-License-Identifier: Apache-2.0
//
// q, k and v of all heads come out of one product, [B, T, 3 n_embd], and the attention kernel reads them from there, so
// nothing is transposed or split. Forward saves that tensor and the statistics of each row and head, from which
// backward recomputes the attention weights: saving the T x T weights would take most of the memory of a long sequence.
#include "fsdp/models/gpt2_block.h"

#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/last_dim.h"
#include "fsdp/nn/norm.h"

namespace fsdp {
namespace {

Initializer WeightInitializer(const Gpt2Config& config) {
  return Initializer::Normal(0, static_cast<float>(config.initializer_range));
}

// GPT-2's rule for the projections that add to the residual stream. Each block has two of them, so the stream's
// variance would grow with 2 n_layer otherwise.
Initializer ResidualInitializer(const Gpt2Config& config) {
  return Initializer::Normal(
      0, static_cast<float>(config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.n_layer))));
}

int64_t InnerDim(const Gpt2Config& config) { return config.n_inner > 0 ? config.n_inner : 4 * config.n_embd; }

ActivationKind ActivationOf(const Gpt2Config& config) {
  return ParseActivationKind(config.activation_function).value();  // CheckGpt2Config parsed it
}

// The number that the kernel multiplies the scores by before the softmax: 1 / sqrt(head_dim), and 1 / (layer_index + 1)
// if the config asks for it (Stanford's Mistral models do, for stable training in float16).
float AttentionScale(const Gpt2Config& config, int64_t layer_index) {
  double scale = 1;
  if (config.scale_attn_weights) scale /= std::sqrt(static_cast<double>(config.n_embd / config.n_head));
  if (config.scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(layer_index + 1);
  return static_cast<float>(scale);
}

AttentionRounding RoundingOf(const Gpt2Config& config) {
  if (config.attention == AttentionKind::kOnline) return AttentionRounding::kOnline;
  return config.reorder_and_upcast_attn ? AttentionRounding::kFused : AttentionRounding::kEager;
}

}  // namespace

Gpt2Attention::Gpt2Attention(const Gpt2Config& config, int64_t layer_index)
    : c_attn_(
          AddChild("c_attn", std::make_unique<Conv1D>(config.n_embd, 3 * config.n_embd, WeightInitializer(config)))),
      c_proj_(AddChild("c_proj", std::make_unique<Conv1D>(config.n_embd, config.n_embd, ResidualInitializer(config)))),
      num_heads_(config.n_head),
      scale_(AttentionScale(config, layer_index)),
      rounding_(RoundingOf(config)) {}

AttentionShape Gpt2Attention::AttentionShapeOf(const Tensor& x) const {
  const Shape& shape = x.shape();
  return {.batch = shape.dim(0),
          .seq_len = shape.dim(1),
          .num_heads = num_heads_,
          .head_dim = shape.dim(2) / num_heads_,
          .scale = scale_,
          .rounding = rounding_};
}

absl::StatusOr<Tensor> Gpt2Attention::DoForward(const Tensor& x, Tape& tape) {
  if (x.shape().rank() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: input ", x.shape().ToString(), " is not [batch, seq_len, n_embd]"));
  }
  FSDP_ASSIGN_OR_RETURN(Tensor qkv, c_attn_->Forward(x, tape));
  const AttentionShape shape = AttentionShapeOf(x);
  FSDP_ASSIGN_OR_RETURN(Tensor heads, tape.Empty(qkv.dtype(), x.shape()));
  FSDP_ASSIGN_OR_RETURN(Tensor statistics, tape.Empty(DType::kFloat32, {shape.statistics_numel()}));
  tape.ops().CausalAttention(AsRows(qkv), shape, AsRows(heads), statistics, tape.stream());
  tape.Save(qkv);
  tape.Save(heads);  // the memory that c_proj saves too
  tape.Save(statistics);
  return c_proj_->Forward(heads, tape);
}

// The tape is a stack, so tensors are restored in the reverse of the order in which DoForward saved them.
absl::StatusOr<Tensor> Gpt2Attention::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor grad_heads, c_proj_->Backward(grad_output, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor statistics, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor heads, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor qkv, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_qkv, tape.Empty(qkv.dtype(), qkv.shape()));
  tape.ops().CausalAttentionBackward(AsRows(grad_heads), AsRows(qkv), AsRows(heads), statistics,
                                     AttentionShapeOf(grad_heads), AsRows(grad_qkv), tape.stream());
  return c_attn_->Backward(grad_qkv, tape);
}

Gpt2Mlp::Gpt2Mlp(const Gpt2Config& config)
    : c_fc_(AddChild("c_fc", std::make_unique<Conv1D>(config.n_embd, InnerDim(config), WeightInitializer(config)))),
      c_proj_(
          AddChild("c_proj", std::make_unique<Conv1D>(InnerDim(config), config.n_embd, ResidualInitializer(config)))),
      act_(AddChild("act", std::make_unique<Activation>(ActivationOf(config)))) {}

absl::StatusOr<Tensor> Gpt2Mlp::DoForward(const Tensor& x, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor hidden, c_fc_->Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor activated, act_->Forward(hidden, tape));
  return c_proj_->Forward(activated, tape);
}

absl::StatusOr<Tensor> Gpt2Mlp::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor grad_activated, c_proj_->Backward(grad_output, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_hidden, act_->Backward(grad_activated, tape));
  return c_fc_->Backward(grad_hidden, tape);
}

Gpt2Block::Gpt2Block(const Gpt2Config& config, int64_t layer_index) {
  attention_norm_ = AddChild("ln_1", std::make_unique<LayerNorm>(config.n_embd, config.layer_norm_epsilon));
  attention_ = AddChild("attn", std::make_unique<Gpt2Attention>(config, layer_index));
  mlp_norm_ = AddChild("ln_2", std::make_unique<LayerNorm>(config.n_embd, config.layer_norm_epsilon));
  mlp_ = AddChild("mlp", std::make_unique<Gpt2Mlp>(config));
}

}  // namespace fsdp
