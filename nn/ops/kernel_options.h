// SPDX-License-Identifier: Apache-2.0
//
// The small values that select the computation of a kernel of nn/ops/layer_ops.h.
#ifndef FSDP_NN_OPS_KERNEL_OPTIONS_H_
#define FSDP_NN_OPS_KERNEL_OPTIONS_H_

#include <cstdint>

namespace fsdp {

// How the operands of c = a b are stored, and what happens to c. With these, the three products of a linear layer
// (forward, gradient of the input, gradient of the weight) need no transposed copy and no temporary.
struct MatmulOptions {
  bool transpose_a = false;  // a is [K, M] in memory, used as [M, K]
  bool transpose_b = false;  // b is [N, K] in memory, used as [K, N]
  bool accumulate = false;   // c += a b instead of c = a b
};

// Which values attention in 16 bits rounds between its matrix products. Fused is the most accurate; eager is Hugging
// Face's models op by op, and must be used to follow their curves; online is all that a kernel that visits each score
// once can do (FlashAttention, arXiv 2205.14135). In float32 nothing is rounded, and they differ only in the statistics
// that they keep.
enum class AttentionRounding : uint8_t {
  // Only the values that the products read: the probabilities and the gradient of the scores.
  kFused,
  // Also the scores, the scaled scores and the gradient of each; Llama.
  kEagerFloat32Softmax,
  // And the probabilities before the gradient of softmax is taken from them; GPT-2.
  kEager,
  // Forward the probabilities before they are divided by their sum, e^(score - maximum): the product with v is divided
  // in float32. Backward as kFused, but the row sum of p grad_p is taken from the rounded output, as the row sum of
  // grad_out out.
  kOnline,
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

  // Rows of scores, and the float32 that attention keeps of them for backward: the logarithm of the sum of e^score
  // under kOnline, else the maximum and 1 / sum.
  int64_t score_rows() const { return batch * num_heads * seq_len; }
  int64_t statistics_numel() const { return (rounding == AttentionRounding::kOnline ? 1 : 2) * score_rows(); }
};

// Sizes of one call of attention without a causal mask, with queries from one sequence and keys and values from
// another. Rows and columns are as for AttentionShape, with S keys for T queries.
struct CrossAttentionShape {
  int64_t batch = 0;
  int64_t q_len = 0;   // T
  int64_t kv_len = 0;  // S
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // 0: num_heads; fewer, a divisor of it
  int64_t head_dim = 0;
  float scale = 1;  // of the scores, usually 1 / sqrt(head_dim)

  int64_t kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }
  int64_t group() const { return num_heads / kv_heads(); }
  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return kv_heads() * head_dim; }
};

// Elementwise non-linearities, by what they compute. GELU is x times the normal distribution's cumulative function, of
// which the tanh form is an approximation (Hendrycks and Gimpel, arXiv 1606.08415).
enum class ActivationKind : uint8_t {
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  kGeluErf,   // x (1 + erf(x / sqrt(2))) / 2
  kRelu,      // max(x, 0)
  kSilu,      // x / (1 + exp(-x))
};

// Sizes of one convolution over one image of C channels, as in torch.nn.functional.conv2d. A convolution of one
// dimension has height 1.
struct ConvolutionShape {
  int64_t channels = 0;
  int64_t height = 1, width = 0;
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t padding_h = 0, padding_w = 0;  // zeros on either side
  int64_t dilation_h = 1, dilation_w = 1;
  bool ones = false;  // Unfold adds a last row of ones, which a bias multiplies

  int64_t out_height() const { return OutSize(height, kernel_h, stride_h, padding_h, dilation_h); }
  int64_t out_width() const { return OutSize(width, kernel_w, stride_w, padding_w, dilation_w); }
  // Rows (without the bias row of ones) and columns of the matrix that Unfold makes, and elements of the image.
  int64_t rows() const { return channels * kernel_h * kernel_w; }
  int64_t columns() const { return out_height() * out_width(); }
  int64_t image_numel() const { return channels * height * width; }

 private:
  // 0 if the kernel does not fit.
  static int64_t OutSize(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
  }
};

// Which elements dropout keeps: element i if number `first` + i of the sequence, uniform in [0, 1) as FillUniform of
// base/random.h has it, is at least p. A pure function: backward needs no mask in memory.
struct DropoutMask {
  uint64_t seed = 0;
  uint64_t sequence = 0;
  uint64_t first = 0;
  float p = 0;  // the share that is dropped, 0 to 1
};

}  // namespace fsdp

#endif  // FSDP_NN_OPS_KERNEL_OPTIONS_H_
