// SPDX-License-Identifier: Apache-2.0
//
// LayerOps: the kernels behind the layers, as an interface that each device implements (host_layer_ops.cc with oneDNN,
// cuda_layer_ops.cc with cuBLASLt). Calls return immediately: the work runs in stream order and holds references to its
// tensors until it has run. Errors of operands and of values fail the stream. Activations and parameters are float32,
// bfloat16 or float16, of one dtype per call unless a comment names another; sums and statistics are float32 or better.
// "+=" means added to the values in memory, with the sum rounded once, "(+)=" that or a replacement of them. A value
// too large for float16 is infinity.
//
// Every sum has an order that depends only on shapes, not on timing, so a run repeated on one kind of machine has the
// same bits. Hosts and GPUs sum in different orders and agree to rounding.
//
// Sizes: B sequences of T tokens; M rows of C columns (M = B * T as a rule); H heads of D elements, Hkv of them for
// keys and values; V classes.
#ifndef FSDP_NN_OPS_LAYER_OPS_H_
#define FSDP_NN_OPS_LAYER_OPS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// The inputs of cross attention: q [B * T, H * D], k and v [B * S, Hkv * D], and key_mask int32 [B, S], 1 for a key
// that queries see and 0 for one that they do not; undefined: they see all.
struct CrossAttentionOperands {
  Tensor q, k, v, key_mask;
};

struct CrossAttentionGrads {
  Tensor q, k, v;
};

// A residual addition before a norm: sum = x + residual, all [M, C]. `sum` is written.
struct ResidualSum {
  Tensor x, residual, sum;
};

// The gradient of a parameter as a kernel writes it. Undefined: it is not computed.
struct ParameterGrad {
  ParameterGrad() = default;
  // Added to the values in memory; without `accumulates` it replaces them, and they may be anything.
  ParameterGrad(Tensor t, bool accumulates = true) : grad(std::move(t)), accumulate(accumulates) {}

  bool defined() const { return grad.defined(); }

  Tensor grad;
  bool accumulate = true;
};

// The results of the backward of a norm: x [M, C], and the gradients of weight and bias [C]. RMS norm has no bias.
struct NormGrads {
  Tensor x;
  ParameterGrad weight, bias;
};

// Thread-safe. Outputs may hold anything before the call and do not overlap inputs, unless a comment allows it.
//
// Each function checks the dtype, the size and the device of every operand, on the calling thread, in O(1) and without
// reading an element. Elementwise operands may have any shapes of one number of elements. A wrong operand fails the
// stream with kInvalidArgument, naming the kernel, the operand, its actual and its expected form, and no kernel runs.
// So the kernels of every device see only right operands, and the checks are written once.
class LayerOps {
 public:
  virtual ~LayerOps() = default;

  // out[n, :] = table[tokens[n], :]; tokens int32 of any shape. A token outside the table fails the stream, naming it
  // and its place.
  void Embedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const;
  // grad_table[tokens[n], :] += grad_out[n, :], each row summed in the order of n: float32 in float32 or better,
  // 16 bits in runs of at most 256 whose every sum is rounded, as PyTorch does on a CPU. The row of `padding_idx`, if
  // there is one, gets no gradient.
  void EmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                         const Tensor& grad_table, Stream& stream) const;

  // The best distance between rows of `columns` elements that a product writes or reads: `columns`, or more on a device
  // whose products need rows to begin at aligned addresses. A pure function. Matmul, BiasBackward, CopyRows and the
  // kernels of cross entropy take rows at this distance (Tensor::row_stride); all others refuse them, and hosts refuse
  // all.
  virtual int64_t RowStride(DType dtype, int64_t columns) const = 0;
  // out = x, matrices of one shape, whatever the distance between the rows of either.
  void CopyRows(const Tensor& x, const Tensor& out, Stream& stream) const;

  // c [M, N] (+)= a [M, K] b [K, N] + bias [N]; bias may be undefined. Without a bias, c may be float32 for a and b of
  // 16 bits, so that a sum of several products is rounded once, by the caller.
  void Matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c, const MatmulOptions& options,
              Stream& stream) const;
  // grad_bias [N] (+)= column sums of grad_out [M, N], in row order. grad_bias may be float32 as in Matmul.
  void BiasBackward(const Tensor& grad_out, const ParameterGrad& grad_bias, Stream& stream) const;

  // out = a + b, elementwise; out may be a or b.
  void Add(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const;

  // Rows of x [M, C] to mean 0 and variance 1, then weight and bias: out = (x - mean) rstd weight + bias, rstd = 1 /
  // sqrt(variance + eps). mean and rstd (float64 [M]) are kept for backward.
  void LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                 const Tensor& mean, const Tensor& rstd, Stream& stream) const;
  // With h = (x - mean) rstd and g = grad_out weight: grad_x = rstd (g - mean(g) - h mean(g h)), means over a row;
  // grad_weight (+)= column sums of grad_out h; grad_bias (+)= column sums of grad_out. Either of the last two may be
  // undefined, and is then not computed.
  void LayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& rstd, const Tensor& grad_x, const ParameterGrad& grad_weight,
                         const ParameterGrad& grad_bias, Stream& stream) const;

  // Rows of x [M, C] over their root mean square, rounded to the dtype, then times weight. rstd (float64 [M]) is kept
  // for backward.
  void RmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
               Stream& stream) const;
  // With h = x rstd and g = grad_out weight: grad_x = rstd (g - h mean(g h)); grad_weight (+)= column sums of grad_out
  // h, unless it is undefined.
  void RmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                       const Tensor& grad_x, const ParameterGrad& grad_weight, Stream& stream) const;

  // A residual addition and the norm of its sum, out = norm(input.sum), in the bits of Add, which rounds the sum to the
  // dtype, and of LayerNorm or RmsNorm.
  void AddLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                    const Tensor& mean, const Tensor& rstd, Stream& stream) const;
  void AddRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                  Stream& stream) const;
  // Backward of a norm of `sum`, of which `grad_sum` is the gradient along the residual path: grads.x, the gradient of
  // both addends, is the result of LayerNormBackward or RmsNormBackward, rounded, plus grad_sum.
  void AddLayerNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum, const Tensor& weight,
                            const Tensor& mean, const Tensor& rstd, const NormGrads& grads, Stream& stream) const;
  void AddRmsNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum, const Tensor& weight,
                          const Tensor& rstd, const NormGrads& grads, Stream& stream) const;

  // out = f(x), elementwise, and grad_x = grad_out * f'(x).
  void Activate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const;
  void ActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                        Stream& stream) const;

  // out = f(gate) * up, elementwise, with f(gate) rounded to the dtype first.
  void ActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                     Stream& stream) const;
  // grad_gate = grad_out * up * f'(gate), grad_up = grad_out * f(gate).
  void ActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                             const Tensor& grad_gate, const Tensor& grad_up, Stream& stream) const;

  // out = x / (1 - p) if `mask` keeps the element, else 0; out may be x. Applied to a gradient it is the backward.
  void Dropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const;

  // The matrix that convolution multiplies: columns [C * KH * KW, OH * OW] of an image [C, H, W]. Row (c, i, j), column
  // (y, x) is element (c, y stride_h - padding_h + i dilation_h, x stride_w - padding_w + j dilation_w), and 0 outside
  // the image. With shape.ones, one more row of ones.
  void Unfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns, Stream& stream) const;
  // The transposed map, without a row of ones: each element of `image` becomes the sum of the elements of `columns`
  // that Unfold makes of it, in the order of their rows, in float32, rounded once.
  void Fold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image, Stream& stream) const;

  // Puts q [B * T, H * D] and k, v [B * T, Hkv * D] side by side into the rows of qkv, as CausalAttention reads it,
  // each head of q and k rotated by its position t: its halves (a, b) become (a cos - b sin, b cos + a sin), each
  // product rounded to the dtype. Row t of `rotation` [at least T, D] has the D / 2 cosines, then the sines. D is even.
  void RotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation, const AttentionShape& shape,
                 const Tensor& qkv, Stream& stream) const;
  // Splits grad_qkv again and rotates back: by the negated angle, which is the transposed map.
  void RotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                         const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v, Stream& stream) const;

  // Causal attention on qkv [B * T, (H + 2 * Hkv) * D] (q, k and v side by side in each row, heads inside; all heads of
  // a group of H / Hkv read the same k and v); out [B * T, H * D]. For each head, out[t] = sum over s <= t of p[t, s]
  // v[s], with p[t, :] = softmax(scale * q[t] . k[s]). Softmax is computed in float32 whatever the dtype;
  // shape.rounding selects the values that are rounded around it. `statistics` (float32, shape.statistics_numel(), one
  // or two for each of the rows [B, H, T] of scores) is kept for backward, which recomputes the probabilities: no T x T
  // tensor outlives the call.
  void CausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                       Stream& stream) const;
  // With p recomputed: grad_v = p^T grad_out, grad_p = grad_out v^T, grad_scores = scale * p (grad_p - row sum of p
  // grad_p), grad_q = grad_scores k, grad_k = grad_scores^T q; grad_k and grad_v are summed over the heads of a group.
  // `out` and `statistics` are forward's. Only kOnline reads `out`, whose product with grad_out has the same row sums.
  void CausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& out, const Tensor& statistics,
                               const AttentionShape& shape, const Tensor& grad_qkv, Stream& stream) const;

  // Names the kernels that compute causal attention of a shape and dtype on this device, for a program's log: "cuDNN
  // 9.19.0", or "own kernels (the reason)". May prepare the calls' plans.
  virtual std::string AttentionKernels(const AttentionShape& /*shape*/, DType /*dtype*/) const { return "own kernels"; }

  // For each head, out[t] = sum over s of p[t, s] v[s], with p[t, :] = softmax(scale * q[t] . k[s]) over the keys that
  // key_mask lets through, in float32; the operands of the products are rounded to the dtype. A query without any key
  // gets 0. out [B * T, H * D]; `statistics` (float32 [B * H * T, 2]: maximum and 1 / sum of each row, 0 without a key)
  // is kept for backward, which recomputes the probabilities.
  void CrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape, const Tensor& out,
                      const Tensor& statistics, Stream& stream) const;
  // The formulas of CausalAttentionBackward; the gradients have the shapes of q, k and v.
  void CrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands, const Tensor& statistics,
                              const CrossAttentionShape& shape, const CrossAttentionGrads& grads, Stream& stream) const;

  // loss (float32 [1]) = mean over rows of the cross entropy of softmax(logits [N, V]) against targets (int32 [N]), in
  // float32 from logits cast to float32. A target outside [0, V) fails the stream. `statistics` (float32 [N, 2]:
  // maximum and 1 / sum of each row) is kept for backward.
  void CrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                    Stream& stream) const;
  // grad_logits = scale * d loss / d logits = scale / N * (softmax(logits) - one_hot(targets)); may be `logits` itself.
  void CrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                            const Tensor& grad_logits, Stream& stream) const;
  // CrossEntropy and then CrossEntropyBackward into `logits` itself, with the same results: a device may read the
  // logits once for both. `statistics` as for CrossEntropy.
  void CrossEntropyWithGradient(const Tensor& logits, const Tensor& targets, float scale, const Tensor& loss,
                                const Tensor& statistics, Stream& stream) const;

 protected:
  // The kernels of the functions above, by device: a call puts one on the stream, with operands that were checked. The
  // defaults put the addition and the norm there, one after the other.
  virtual void DoEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const = 0;
  virtual void DoEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                                   const Tensor& grad_table, Stream& stream) const = 0;
  virtual void DoCopyRows(const Tensor& x, const Tensor& out, Stream& stream) const = 0;
  virtual void DoMatmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c,
                        const MatmulOptions& options, Stream& stream) const = 0;
  virtual void DoBiasBackward(const Tensor& grad_out, const ParameterGrad& grad_bias, Stream& stream) const = 0;
  virtual void DoAdd(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const = 0;
  virtual void DoLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                           const Tensor& mean, const Tensor& rstd, Stream& stream) const = 0;
  virtual void DoLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                                   const Tensor& rstd, const Tensor& grad_x, const ParameterGrad& grad_weight,
                                   const ParameterGrad& grad_bias, Stream& stream) const = 0;
  virtual void DoRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                         Stream& stream) const = 0;
  virtual void DoRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                                 const Tensor& grad_x, const ParameterGrad& grad_weight, Stream& stream) const = 0;
  virtual void DoAddLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps,
                              const Tensor& out, const Tensor& mean, const Tensor& rstd, Stream& stream) const;
  virtual void DoAddRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out,
                            const Tensor& rstd, Stream& stream) const;
  virtual void DoAddLayerNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum,
                                      const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                                      const NormGrads& grads, Stream& stream) const;
  virtual void DoAddRmsNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum,
                                    const Tensor& weight, const Tensor& rstd, const NormGrads& grads,
                                    Stream& stream) const;
  virtual void DoActivate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const = 0;
  virtual void DoActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                                  Stream& stream) const = 0;
  virtual void DoActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                               Stream& stream) const = 0;
  virtual void DoActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate,
                                       const Tensor& up, const Tensor& grad_gate, const Tensor& grad_up,
                                       Stream& stream) const = 0;
  virtual void DoDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const = 0;
  virtual void DoUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns,
                        Stream& stream) const = 0;
  virtual void DoFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image,
                      Stream& stream) const = 0;
  virtual void DoRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                           const AttentionShape& shape, const Tensor& qkv, Stream& stream) const = 0;
  virtual void DoRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                                   const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                                   Stream& stream) const = 0;
  virtual void DoCausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out,
                                 const Tensor& statistics, Stream& stream) const = 0;
  virtual void DoCausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& out,
                                         const Tensor& statistics, const AttentionShape& shape, const Tensor& grad_qkv,
                                         Stream& stream) const = 0;
  virtual void DoCrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape,
                                const Tensor& out, const Tensor& statistics, Stream& stream) const = 0;
  virtual void DoCrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                        const Tensor& statistics, const CrossAttentionShape& shape,
                                        const CrossAttentionGrads& grads, Stream& stream) const = 0;
  virtual void DoCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                              Stream& stream) const = 0;
  virtual void DoCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics,
                                      float scale, const Tensor& grad_logits, Stream& stream) const = 0;
  virtual void DoCrossEntropyWithGradient(const Tensor& logits, const Tensor& targets, float scale, const Tensor& loss,
                                          const Tensor& statistics, Stream& stream) const = 0;
};

// The registry through which a library of kernels adds a kind of device to LayerOpsFor (nn/device_layer_ops.h).
using LayerOpsFactory = std::unique_ptr<const LayerOps> (*)(const Device& device);

// Registers the kernels for devices of `type`. Call from a static initialiser of the library that has the kernels, so
// that linking it is enough. Always returns true, as the value of the initialised variable. Not thread-safe.
bool RegisterLayerOps(DeviceType type, LayerOpsFactory create);

// The registered factory for `type`; null if the program does not link one. Thread-safe after main has begun.
LayerOpsFactory RegisteredLayerOps(DeviceType type);

}  // namespace fsdp

#endif  // FSDP_NN_OPS_LAYER_OPS_H_
