// SPDX-License-Identifier: Apache-2.0
//
// LayerOps: the kernels behind the layers, as an interface that each device implements (host_layer_ops.h with oneDNN;
// CUDA later). All are stream-ordered and hold references to their tensors until they ran. Activations and parameters
// are float32 or bfloat16, of one dtype per call; sums and statistics are float32. "+=" means added to what is there,
// with the sum rounded once.
#ifndef FSDP_NN_LAYER_OPS_H_
#define FSDP_NN_LAYER_OPS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tensor/device.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace fsdp {

// One operand of a matrix product: rows x cols as used, transposed or not in memory.
struct MatmulOptions {
  bool transpose_a = false;  // a is [K, M] in memory, used as [M, K]
  bool transpose_b = false;  // b is [N, K] in memory, used as [K, N]
  bool accumulate = false;   // c += a b instead of c = a b
};

struct AttentionShape {
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  float scale = 1;  // of the scores, usually 1 / sqrt(head_dim)
};

class LayerOps {
 public:
  virtual ~LayerOps() = default;

  // out[n, :] = table[tokens[n], :]; tokens int32. A token outside the table fails the stream, naming it and its place.
  virtual void Embedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const = 0;
  // grad_table[tokens[n], :] += grad_out[n, :], in the order of n, each row summed in float32.
  virtual void EmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, const Tensor& grad_table,
                                 Stream& stream) const = 0;

  // c [M, N] (+)= a [M, K] b [K, N] + bias [N]; bias may be undefined.
  virtual void Matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c,
                      const MatmulOptions& options, Stream& stream) const = 0;
  // grad_bias [N] += column sums of grad_out [M, N], in row order.
  virtual void BiasBackward(const Tensor& grad_out, const Tensor& grad_bias, Stream& stream) const = 0;

  // out = a + b, elementwise; out may be a or b.
  virtual void Add(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const = 0;

  // Rows of x [M, C] to mean 0 and variance 1, then weight and bias. mean and rstd (float32 [M]) are kept for backward.
  virtual void LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                         const Tensor& mean, const Tensor& rstd, Stream& stream) const = 0;
  virtual void LayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                                 const Tensor& rstd, const Tensor& grad_x, const Tensor& grad_weight,
                                 const Tensor& grad_bias, Stream& stream) const = 0;

  // The tanh form (gelu_new, gelu_pytorch_tanh).
  virtual void Gelu(const Tensor& x, const Tensor& out, Stream& stream) const = 0;
  virtual void GeluBackward(const Tensor& grad_out, const Tensor& x, const Tensor& grad_x, Stream& stream) const = 0;

  // Causal attention on qkv [B * T, 3 * H * D] (q, k, v beside each other, heads inside); out [B * T, H * D].
  // `probabilities` [B, H, T, T] in the compute dtype is kept for backward.
  virtual void CausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out,
                               const Tensor& probabilities, Stream& stream) const = 0;
  virtual void CausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& probabilities,
                                       const AttentionShape& shape, const Tensor& grad_qkv, Stream& stream) const = 0;

  // loss (float32 [1]) = mean over rows of the cross entropy of softmax(logits [N, V]) against targets (int32 [N]), in
  // float32 from logits cast to float32. A target outside [0, V) fails the stream.
  virtual void CrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, Stream& stream) const = 0;
  // grad_logits = scale * d loss / d logits; may be `logits` itself.
  virtual void CrossEntropyBackward(const Tensor& logits, const Tensor& targets, float scale,
                                    const Tensor& grad_logits, Stream& stream) const = 0;
};

// The host's kernels: oneDNN matrix products, vectorised loops. `kernel_threads` as in HostDeviceOptions.
std::shared_ptr<const LayerOps> CreateHostLayerOps(int kernel_threads);

// The kernels of `device`.
absl::StatusOr<std::shared_ptr<const LayerOps>> LayerOpsFor(const Device& device);

}  // namespace fsdp

#endif  // FSDP_NN_LAYER_OPS_H_
