// SPDX-License-Identifier: Apache-2.0
//
// GPT-2 by the formulas, in the order of Hugging Face's modules, with activations [tokens, width] as flat vectors:
//
//   x = wte[token] + wpe[position]
//   for each block:  x = x + c_proj(attention(c_attn(ln_1(x))));  x = x + c_proj(gelu(c_fc(ln_2(x))))
//   logits = ln_f(x) wte^T                       the head is tied, so wte gets gradients from both ends
//
// Backward walks the same list upwards; each sum passes its gradient to both of its terms. AdamW follows the loop in
// PyTorch's documentation: decay first, then the moments, then the update with both bias corrections.
#include "fsdp/tests/gpt2_float64.h"

#include <algorithm>
#include <cmath>

namespace fsdp {
namespace {

void AddTo(Doubles& sum, const Doubles& terms) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += terms[i];
}

Doubles Sum(Doubles a, const Doubles& b) {
  AddTo(a, b);
  return a;
}

// Positions 0, 1, ... of each of `rows` rows, as tokens of the position embedding.
std::vector<int32_t> Positions(int64_t rows, int64_t seq_len) {
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < rows * seq_len; ++i) positions.push_back(static_cast<int32_t>(i % seq_len));
  return positions;
}

}  // namespace

Gpt2Float64::Gpt2Float64(const Gpt2Config& config, const std::map<std::string, std::vector<float>>& weights)
    : config_(config) {
  for (const auto& [name, values] : weights) {
    const bool is_vector = name.find(".bias") != std::string::npos || name.find("ln_") != std::string::npos;
    const Doubles zero(values.size(), 0.0);
    parameters_[name] = {Doubles(values.begin(), values.end()), zero, zero, zero, !is_vector};
  }
  shape_.num_heads = config.n_head;
  shape_.head_dim = config.n_embd / config.n_head;
}

std::string Gpt2Float64::BlockName(int64_t layer) const { return "transformer.h." + std::to_string(layer) + "."; }

Doubles Gpt2Float64::Linear(const std::string& name, const Doubles& x) {
  const Doubles& bias = At(name + ".bias").value;
  const Doubles& weight = At(name + ".weight").value;  // [in, out]
  const int64_t n = static_cast<int64_t>(bias.size());
  const int64_t k = static_cast<int64_t>(weight.size()) / n;
  const int64_t m = static_cast<int64_t>(x.size()) / k;
  Doubles y = ReferenceMatmul(x, weight, {.m = m, .n = n, .k = k}, {});
  for (int64_t i = 0; i < m * n; ++i) y[i] += bias[i % n];
  return y;
}

Doubles Gpt2Float64::LinearBackward(const std::string& name, const Doubles& grad_out, const Doubles& x) {
  Parameter& weight = At(name + ".weight");
  Parameter& bias = At(name + ".bias");
  const int64_t n = static_cast<int64_t>(bias.value.size());
  const int64_t k = static_cast<int64_t>(weight.value.size()) / n;
  const int64_t m = static_cast<int64_t>(x.size()) / k;
  AddTo(bias.grad, ReferenceColumnSums(grad_out, n));
  AddTo(weight.grad, ReferenceMatmul(x, grad_out, {.m = k, .n = n, .k = m}, {.transpose_a = true}));
  return ReferenceMatmul(grad_out, weight.value, {.m = m, .n = k, .k = n}, {.transpose_b = true});
}

Doubles Gpt2Float64::Norm(const std::string& name, const Doubles& x) {
  return ReferenceLayerNorm(x, At(name + ".weight").value, At(name + ".bias").value, config_.layer_norm_epsilon);
}

Doubles Gpt2Float64::NormBackward(const std::string& name, const Doubles& grad_out, const Doubles& x) {
  Parameter& weight = At(name + ".weight");
  LayerNormGrads grads = ReferenceLayerNormBackward(grad_out, x, weight.value, config_.layer_norm_epsilon);
  AddTo(weight.grad, grads.weight);
  AddTo(At(name + ".bias").grad, grads.bias);
  return std::move(grads.x);
}

void Gpt2Float64::ScaleQueries(Doubles& qkv) const {
  const int64_t width = config_.n_embd;
  const double scale = 1 / std::sqrt(static_cast<double>(shape_.head_dim));
  // The first third of each row of qkv is q.
  for (size_t i = 0; i < qkv.size(); ++i) {
    if (static_cast<int64_t>(i) % (3 * width) < width) qkv[i] *= scale;
  }
}

Doubles Gpt2Float64::BlockForward(int64_t layer, const Doubles& x, BlockState& state) {
  const std::string name = BlockName(layer);
  state.x = x;
  state.ln_1 = Norm(name + "ln_1", x);
  state.qkv = Linear(name + "attn.c_attn", state.ln_1);
  ScaleQueries(state.qkv);
  state.attention = ReferenceAttention(state.qkv, shape_);
  state.middle = Sum(Linear(name + "attn.c_proj", state.attention), x);
  state.ln_2 = Norm(name + "ln_2", state.middle);
  state.fc = Linear(name + "mlp.c_fc", state.ln_2);
  state.activated = ReferenceActivate(ActivationKind::kGeluTanh, state.fc);
  return Sum(Linear(name + "mlp.c_proj", state.activated), state.middle);
}

// The reference attention has no scale, so q was scaled before it, and the gradient of q is scaled after it.
Doubles Gpt2Float64::BlockBackward(int64_t layer, const Doubles& grad_out, const BlockState& state) {
  const std::string name = BlockName(layer);
  const Doubles grad_activated = LinearBackward(name + "mlp.c_proj", grad_out, state.activated);
  const Doubles grad_fc = ReferenceActivateBackward(ActivationKind::kGeluTanh, grad_activated, state.fc);
  const Doubles grad_ln_2 = LinearBackward(name + "mlp.c_fc", grad_fc, state.ln_2);
  const Doubles grad_middle = Sum(NormBackward(name + "ln_2", grad_ln_2, state.middle), grad_out);
  const Doubles grad_attention = LinearBackward(name + "attn.c_proj", grad_middle, state.attention);
  Doubles grad_qkv = ReferenceAttentionBackward(grad_attention, state.qkv, shape_);
  ScaleQueries(grad_qkv);
  const Doubles grad_ln_1 = LinearBackward(name + "attn.c_attn", grad_qkv, state.ln_1);
  return Sum(NormBackward(name + "ln_1", grad_ln_1, state.x), grad_middle);
}

// The head is tied: wte.grad gets a part from the logits and a part from the embedding.
double Gpt2Float64::ForwardBackward(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                                    int64_t rows) {
  const int64_t width = config_.n_embd;
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  shape_.batch = rows;
  shape_.seq_len = num_tokens / rows;
  const std::vector<int32_t> positions = Positions(rows, shape_.seq_len);
  Parameter& wte = At("transformer.wte.weight");
  Parameter& wpe = At("transformer.wpe.weight");

  std::vector<BlockState> states(config_.n_layer);
  Doubles x = Sum(ReferenceEmbedding(tokens, wte.value, width), ReferenceEmbedding(positions, wpe.value, width));
  for (int64_t layer = 0; layer < config_.n_layer; ++layer) x = BlockForward(layer, x, states[layer]);
  const Doubles normed = Norm("transformer.ln_f", x);
  const MatmulSizes head = {.m = num_tokens, .n = config_.vocab_size, .k = width};
  const Doubles logits = ReferenceMatmul(normed, wte.value, head, {.transpose_b = true});
  const double loss = ReferenceCrossEntropy(logits, targets);

  const Doubles grad_logits = ReferenceCrossEntropyBackward(logits, targets, 1.0);
  AddTo(wte.grad, ReferenceMatmul(grad_logits, normed, {.m = config_.vocab_size, .n = width, .k = num_tokens},
                                  {.transpose_a = true}));
  const Doubles grad_normed =
      ReferenceMatmul(grad_logits, wte.value, {.m = num_tokens, .n = width, .k = config_.vocab_size}, {});
  Doubles grad = NormBackward("transformer.ln_f", grad_normed, x);
  for (int64_t layer = config_.n_layer; layer-- > 0;) grad = BlockBackward(layer, grad, states[layer]);
  AddTo(wte.grad, ReferenceEmbeddingBackward(tokens, grad, config_.vocab_size, width));
  AddTo(wpe.grad, ReferenceEmbeddingBackward(positions, grad, config_.n_positions, width));
  return loss;
}

double Gpt2Float64::GradNorm() const {
  double sum = 0;
  for (const auto& [name, parameter] : parameters_) {
    for (const double g : parameter.grad) sum += g * g;
  }
  return std::sqrt(sum);
}

// Loshchilov and Hutter, "Decoupled Weight Decay Regularization"; decay on matrices only, as train_gpt does it.
void Gpt2Float64::Update(const Float64Step& step, double grad_scale) {
  ++steps_;
  const double bias_correction1 = 1 - std::pow(step.beta1, static_cast<double>(steps_));
  const double bias_correction2 = 1 - std::pow(step.beta2, static_cast<double>(steps_));
  for (auto& [name, p] : parameters_) {
    for (size_t i = 0; i < p.value.size(); ++i) {
      const double g = grad_scale * p.grad[i];
      if (p.is_matrix) p.value[i] *= 1 - step.lr * step.weight_decay;
      p.exp_avg[i] = step.beta1 * p.exp_avg[i] + (1 - step.beta1) * g;
      p.exp_avg_sq[i] = step.beta2 * p.exp_avg_sq[i] + (1 - step.beta2) * g * g;
      p.value[i] -=
          step.lr / bias_correction1 * p.exp_avg[i] / (std::sqrt(p.exp_avg_sq[i] / bias_correction2) + step.eps);
    }
  }
}

Float64Outcome Gpt2Float64::Step(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets, int64_t rows,
                                 const Float64Step& step) {
  // Gradients of one step only: nothing accumulates over steps here.
  for (auto& [name, parameter] : parameters_) std::fill(parameter.grad.begin(), parameter.grad.end(), 0.0);
  Float64Outcome outcome;
  outcome.loss = ForwardBackward(tokens, targets, rows);
  outcome.grad_norm = GradNorm();
  // torch.nn.utils.clip_grad_norm_ adds the 1e-6.
  Update(step, step.max_grad_norm > 0 ? std::min(1.0, step.max_grad_norm / (outcome.grad_norm + 1e-6)) : 1.0);
  return outcome;
}

void Gpt2Float64::Round(std::minstd_rand& random) {
  std::uniform_real_distribution<double> relative(-0x1p-24, 0x1p-24);
  for (auto& [name, parameter] : parameters_) {
    for (double& value : parameter.value) value *= 1 + relative(random);
  }
}

}  // namespace fsdp
