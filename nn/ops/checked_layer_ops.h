// SPDX-License-Identifier: Apache-2.0
//
// CheckedLayerOps: a device's LayerOps behind checks of every operand's dtype and shape. An operand that is wrong fails
// the stream with kInvalidArgument, naming the kernel, the operand, its actual and its expected form; the kernel then
// does not run. So the kernels of every device see only right operands, the checks are written once, and tests of
// errors run on every device (nn/layer_ops_errors_test.cc). Values are not read: see LayerOps for tokens and targets
// out of range.
#ifndef FSDP_NN_OPS_CHECKED_LAYER_OPS_H_
#define FSDP_NN_OPS_CHECKED_LAYER_OPS_H_

#include <memory>
#include <string>
#include <utility>

#include "fsdp/nn/ops/layer_ops.h"

namespace fsdp {

// Contracts as in LayerOps. Thread-safe if `ops` is. Every function checks on the calling thread, in O(1) and without
// reading an element, and then either calls the same function of `ops` or fails the stream.
class CheckedLayerOps final : public LayerOps {
 public:
  // `ops` must not be null.
  explicit CheckedLayerOps(std::unique_ptr<const LayerOps> ops) : ops_(std::move(ops)) {}

  // tokens int32 of any shape; table [V, C]; out has C elements for each token.
  void Embedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const override;
  void EmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                         const Tensor& grad_table, Stream& stream) const override;
  int64_t RowStride(DType dtype, int64_t columns) const override { return ops_->RowStride(dtype, columns); }
  // Matrices of one dtype and shape; padded rows are allowed.
  void CopyRows(const Tensor& x, const Tensor& out, Stream& stream) const override;
  // a, b, bias and c of one dtype, all matrices but the bias, with sizes that fit after the transpositions of
  // `options`.
  void Matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c, const MatmulOptions& options,
              Stream& stream) const override;
  // grad_out [M, N], grad_bias of N elements.
  void BiasBackward(const Tensor& grad_out, const Tensor& grad_bias, Stream& stream) const override;
  // All operands have one dtype and one number of elements.
  void Add(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const override;
  // x, out and gradients [M, C], weight and bias [C], statistics float64 [M]. Gradients of parameters may be undefined.
  void LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                 const Tensor& mean, const Tensor& rstd, Stream& stream) const override;
  void LayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& rstd, const Tensor& grad_x, const Tensor& grad_weight, const Tensor& grad_bias,
                         Stream& stream) const override;
  void RmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
               Stream& stream) const override;
  void RmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                       const Tensor& grad_x, const Tensor& grad_weight, Stream& stream) const override;
  // As the functions above; also the residual and the sums are [M, C].
  void AddLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                    const Tensor& mean, const Tensor& rstd, Stream& stream) const override;
  void AddRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                  Stream& stream) const override;
  void AddLayerNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum, const Tensor& weight,
                            const Tensor& mean, const Tensor& rstd, const NormGrads& grads,
                            Stream& stream) const override;
  void AddRmsNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum, const Tensor& weight,
                          const Tensor& rstd, const NormGrads& grads, Stream& stream) const override;
  // All operands have one dtype and one number of elements.
  void Activate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const override;
  void ActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                        Stream& stream) const override;
  void ActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                     Stream& stream) const override;
  void ActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                             const Tensor& grad_gate, const Tensor& grad_up, Stream& stream) const override;
  // x and out have one dtype and one number of elements; p is 0 to 1.
  void Dropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const override;
  // Both have one dtype and the sizes of `shape`, whose kernel fits into the padded image.
  void Unfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns, Stream& stream) const override;
  void Fold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image, Stream& stream) const override;
  // Sizes as in `shape`; head_dim is even, and `rotation` has at least seq_len rows.
  void RotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation, const AttentionShape& shape,
                 const Tensor& qkv, Stream& stream) const override;
  void RotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                         const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                         Stream& stream) const override;
  // qkv, out and statistics have the sizes of `shape`; num_heads is a multiple of num_kv_heads.
  void CausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                       Stream& stream) const override;
  void CausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& out, const Tensor& statistics,
                               const AttentionShape& shape, const Tensor& grad_qkv, Stream& stream) const override;
  std::string AttentionKernels(const AttentionShape& shape, DType dtype) const override {
    return ops_->AttentionKernels(shape, dtype);
  }
  // One dtype, and the sizes of `shape`; the mask may be undefined.
  void CrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape, const Tensor& out,
                      const Tensor& statistics, Stream& stream) const override;
  void CrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands, const Tensor& statistics,
                              const CrossAttentionShape& shape, const CrossAttentionGrads& grads,
                              Stream& stream) const override;
  // logits [N, V], padded rows are allowed; targets int32 [N]; loss float32 [1]; statistics float32 [N, 2].
  void CrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                    Stream& stream) const override;
  void CrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                            const Tensor& grad_logits, Stream& stream) const override;
  void CrossEntropyWithGradient(const Tensor& logits, const Tensor& targets, float scale, const Tensor& loss,
                                const Tensor& statistics, Stream& stream) const override;

 private:
  const std::unique_ptr<const LayerOps> ops_;
};

}  // namespace fsdp

#endif  // FSDP_NN_OPS_CHECKED_LAYER_OPS_H_
