// SPDX-License-Identifier: Apache-2.0
//
// One kernel rotates q and k and writes them with v to one tensor, the input of attention, so the rotated copies need
// no extra pass. As in gpt2_block.cc, backward recomputes the attention weights from saved statistics.
//
// The gradients of q_proj, k_proj and v_proj with respect to x are added in the order in which autograd adds them, v,
// k, q, with a rounding after each sum: another order would give other bits in bfloat16.
#include "fsdp/models/llama_decoder_layer.h"

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/models/pre_norm_block.h"
#include "fsdp/nn/activation.h"
#include "fsdp/nn/last_dim.h"
#include "fsdp/nn/norm.h"

namespace fsdp {
namespace {

std::unique_ptr<Linear> MakeLinear(const LlamaConfig& config, int64_t in_features, int64_t out_features, bool bias) {
  const Initializer initializer = Initializer::Normal(0, static_cast<float>(config.initializer_range));
  return std::make_unique<Linear>(in_features, out_features, initializer, bias);
}

std::unique_ptr<RmsNorm> MakeNorm(const LlamaConfig& config) {
  return std::make_unique<RmsNorm>(config.hidden_size, config.rms_norm_eps);
}

// Adds the gradient of one more path from `x`, as autograd does: each sum is rounded.
Tensor Sum(const Tensor& sum, const Tensor& term, Tape& tape) { return AddResidual(sum, term, tape); }

}  // namespace

LlamaAttention::LlamaAttention(const LlamaConfig& config, RotaryEmbedding* rotary)
    : rotary_(rotary),
      shape_({.num_heads = config.num_attention_heads,
              .num_kv_heads = config.KeyValueHeads(),
              .head_dim = config.HeadDim(),
              .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.HeadDim()))),
              .rounding = config.attention == AttentionKind::kOnline ? AttentionRounding::kOnline
                                                                     : AttentionRounding::kEagerFloat32Softmax}),
      q_proj_(AddChild("q_proj", MakeLinear(config, config.hidden_size, shape_.q_width(), config.attention_bias))),
      k_proj_(AddChild("k_proj", MakeLinear(config, config.hidden_size, shape_.kv_width(), config.attention_bias))),
      v_proj_(AddChild("v_proj", MakeLinear(config, config.hidden_size, shape_.kv_width(), config.attention_bias))),
      o_proj_(AddChild("o_proj", MakeLinear(config, shape_.q_width(), config.hidden_size, config.attention_bias))) {}

AttentionShape LlamaAttention::AttentionShapeOf(const Tensor& x) const {
  AttentionShape shape = shape_;
  shape.batch = x.shape().dim(0);
  shape.seq_len = x.shape().dim(1);
  return shape;
}

absl::StatusOr<Tensor> LlamaAttention::DoForward(const Tensor& x, Tape& tape) {
  if (x.shape().rank() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: input ", x.shape().ToString(), " is not [batch, seq_len, hidden_size]"));
  }
  const AttentionShape shape = AttentionShapeOf(x);
  const int64_t rows = shape.batch * shape.seq_len;
  FSDP_ASSIGN_OR_RETURN(Tensor q, q_proj_->Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor k, k_proj_->Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor v, v_proj_->Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor rotation, rotary_->Rotation(shape.seq_len, x.dtype(), tape));
  FSDP_ASSIGN_OR_RETURN(Tensor qkv, tape.Empty(x.dtype(), {rows, shape.qkv_width()}));
  tape.ops().RotateQkv(q, k, v, rotation, shape, qkv, tape.stream());
  FSDP_ASSIGN_OR_RETURN(Tensor heads, tape.Empty(x.dtype(), WithLastDim(x.shape(), shape.q_width())));
  FSDP_ASSIGN_OR_RETURN(Tensor statistics, tape.Empty(DType::kFloat32, {shape.statistics_numel()}));
  tape.ops().CausalAttention(qkv, shape, AsRows(heads), statistics, tape.stream());
  tape.Save(rotation);
  tape.Save(qkv);
  tape.Save(heads);  // the memory that o_proj saves too
  tape.Save(statistics);
  return o_proj_->Forward(heads, tape);
}

absl::StatusOr<Tensor> LlamaAttention::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor grad_heads, o_proj_->Backward(grad_output, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor statistics, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor heads, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor qkv, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor rotation, tape.Restore());
  const AttentionShape shape = AttentionShapeOf(grad_heads);
  FSDP_ASSIGN_OR_RETURN(Tensor grad_qkv, tape.Empty(qkv.dtype(), qkv.shape()));
  // `heads` only for the online rounding, which needs the row sums of out * grad_out.
  tape.ops().CausalAttentionBackward(AsRows(grad_heads), qkv, AsRows(heads), statistics, shape, grad_qkv,
                                     tape.stream());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_q, tape.Empty(qkv.dtype(), grad_heads.shape()));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_k, tape.Empty(qkv.dtype(), WithLastDim(grad_heads.shape(), shape.kv_width())));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_v, tape.Empty(qkv.dtype(), grad_k.shape()));
  tape.ops().RotateQkvBackward(grad_qkv, rotation, shape, grad_q, grad_k, grad_v, tape.stream());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, v_proj_->Backward(grad_v, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_through_k, k_proj_->Backward(grad_k, tape));
  grad_x = Sum(grad_x, grad_through_k, tape);
  FSDP_ASSIGN_OR_RETURN(Tensor grad_through_q, q_proj_->Backward(grad_q, tape));
  return Sum(grad_x, grad_through_q, tape);
}

LlamaMlp::LlamaMlp(const LlamaConfig& config)
    : gate_proj_(
          AddChild("gate_proj", MakeLinear(config, config.hidden_size, config.intermediate_size, config.mlp_bias))),
      up_proj_(AddChild("up_proj", MakeLinear(config, config.hidden_size, config.intermediate_size, config.mlp_bias))),
      down_proj_(
          AddChild("down_proj", MakeLinear(config, config.intermediate_size, config.hidden_size, config.mlp_bias))),
      kind_(ParseActivationKind(config.hidden_act).value()) {}  // CheckLlamaConfig parsed it

// The activation of the gate and the product with `up` are one kernel. Its inputs are saved and not its output, because
// backward could not compute the two gradients from the output.
absl::StatusOr<Tensor> LlamaMlp::DoForward(const Tensor& x, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor gate, gate_proj_->Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor up, up_proj_->Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor gated, tape.Empty(gate.dtype(), gate.shape()));
  tape.ops().ActivateGated(kind_, gate, up, gated, tape.stream());
  tape.Save(gate);
  tape.Save(up);
  return down_proj_->Forward(gated, tape);
}

absl::StatusOr<Tensor> LlamaMlp::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor grad_gated, down_proj_->Backward(grad_output, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor up, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor gate, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_gate, tape.Empty(gate.dtype(), gate.shape()));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_up, tape.Empty(gate.dtype(), gate.shape()));
  tape.ops().ActivateGatedBackward(kind_, grad_gated, gate, up, grad_gate, grad_up, tape.stream());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, up_proj_->Backward(grad_up, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_through_gate, gate_proj_->Backward(grad_gate, tape));
  return Sum(grad_x, grad_through_gate, tape);
}

// The children have the order of Hugging Face's module, which decides the order of parameters in a flat unit.
LlamaDecoderLayer::LlamaDecoderLayer(const LlamaConfig& config, RotaryEmbedding* rotary) {
  attention_ = AddChild("self_attn", std::make_unique<LlamaAttention>(config, rotary));
  mlp_ = AddChild("mlp", std::make_unique<LlamaMlp>(config));
  attention_norm_ = AddChild("input_layernorm", MakeNorm(config));
  mlp_norm_ = AddChild("post_attention_layernorm", MakeNorm(config));
}

}  // namespace fsdp
