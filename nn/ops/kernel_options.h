// SPDX-License-Identifier: Apache-2.0
//
// The small values that say what a kernel of nn/ops/layer_ops.h is to compute.
#ifndef FSDP_NN_OPS_KERNEL_OPTIONS_H_
#define FSDP_NN_OPS_KERNEL_OPTIONS_H_

#include <cstdint>

namespace fsdp {

// How the operands of c = a b lie in memory, and what happens to c. With these, the three products of a linear layer
// (forward, gradient of the input, gradient of the weight) need no transposed copy and no temporary.
struct MatmulOptions {
  bool transpose_a = false;  // a is [K, M] in memory, used as [M, K]
  bool transpose_b = false;  // b is [N, K] in memory, used as [K, N]
  bool accumulate = false;   // c += a b instead of c = a b
};

// Where attention in bfloat16 rounds between its matrix products. Fused is the most accurate; eager is what Hugging
// Face's models do op by op, and what a run must do too to follow their curves. In float32 all are the same.
enum class AttentionRounding : uint8_t {
  kFused,                // only what the products read: the probabilities and the gradient of the scores
  kEagerFloat32Softmax,  // also the scores, the scaled scores and the gradient of each; Llama
  kEager,                // and the probabilities before the gradient of softmax is taken from them; GPT-2
};

// Sizes of one call of attention. The tensors are B * T rows (one for each position of each sequence) whose columns are
// heads times head_dim, as the projections around attention make and read them.
struct AttentionShape {
  // All sizes are numbers of elements, not bytes.
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // 0: num_heads; fewer, a divisor of it: each key and value serves a group of queries
  int64_t head_dim = 0;
  float scale = 1;  // of the scores, usually 1 / sqrt(head_dim)
  AttentionRounding rounding = AttentionRounding::kFused;

  // Columns of q, of k and of v in a row of qkv, and of all three.
  int64_t kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }
  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return kv_heads() * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

// Elementwise non-linearities, by what they compute. GELU is x times the normal distribution's cumulative function, of
// which the tanh form is an approximation (Hendrycks and Gimpel, arXiv 1606.08415).
enum class ActivationKind : uint8_t {
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  kGeluErf,   // x (1 + erf(x / sqrt(2))) / 2
  kRelu,      // max(x, 0)
  kSilu,      // x / (1 + exp(-x))
};

}  // namespace fsdp

#endif  // FSDP_NN_OPS_KERNEL_OPTIONS_H_
