// SPDX-License-Identifier: Apache-2.0
//
// HostLayerOps: LayerOps on the host. Each call puts one piece of work on the stream, which runs on the stream's
// thread; the kernels are in this folder's other host_*.h. Calls that are large enough use up to `kernel_threads`
// threads: a product as oneDNN divides it, attention by heads, the other kernels by rows or elements. Gathers, scatters
// and folds run on one.
#ifndef FSDP_NN_HOST_HOST_LAYER_OPS_H_
#define FSDP_NN_HOST_HOST_LAYER_OPS_H_

#include <memory>

#include "fsdp/nn/host/host_matmul.h"
#include "fsdp/nn/ops/layer_ops.h"

namespace fsdp {

// Contracts as in LayerOps. Thread-safe: it has no state but the products' kept primitives. A call returns immediately;
// the work holds its tensors by value until it has run. An error of a kernel, or of the memory that attention needs,
// fails the stream.
class HostLayerOps final : public LayerOps {
 public:
  // `kernel_threads` is at least 1. Keep the object: oneDNN compiles a primitive for each new shape.
  explicit HostLayerOps(int kernel_threads);

  // Rows are contiguous.
  int64_t RowStride(DType, int64_t columns) const override { return columns; }

 private:
  // A token or target out of range is kOutOfRange, found when the work runs; outputs may then be half written.
  void DoEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const override;
  void DoEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table, Stream& stream) const override;
  // By oneDNN, on up to `kernel_threads` threads; the operands are dense.
  void DoMatmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c, const MatmulOptions& options,
                Stream& stream) const override;
  // Sums over rows as in ColumnSums: float32 for 32 rows, float64 beyond, in row order.
  void DoBiasBackward(const Tensor& grad_out, const Tensor& grad_bias, Stream& stream) const override;
  // Elementwise in float32, rounded once; `out` may be an operand.
  void DoAdd(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const override;
  // Norms, activations and rotations are vectorised for the processor.
  void DoLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd, Stream& stream) const override;
  void DoLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& grad_x, const Tensor& grad_weight, const Tensor& grad_bias,
                           Stream& stream) const override;
  void DoRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                 Stream& stream) const override;
  void DoRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, const Tensor& grad_weight, Stream& stream) const override;
  void DoActivate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const override;
  void DoActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                          Stream& stream) const override;
  void DoActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                       Stream& stream) const override;
  void DoActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, const Tensor& grad_up, Stream& stream) const override;
  // In runs of 1024 numbers, made by base/random.h.
  void DoDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const override;
  void DoUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns,
                Stream& stream) const override;
  void DoFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image, Stream& stream) const override;
  // Forward rotates q and k and interleaves them with v; backward takes them apart and rotates back.
  void DoRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                   const AttentionShape& shape, const Tensor& qkv, Stream& stream) const override;
  void DoRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                           const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                           Stream& stream) const override;
  // Attention takes working memory of the device for the time of the call, forward and backward: AttentionScratchBytes.
  void DoCausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                         Stream& stream) const override;
  void DoCausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& out, const Tensor& statistics,
                                 const AttentionShape& shape, const Tensor& grad_qkv, Stream& stream) const override;
  // Working memory as for causal attention: one block of queries and one head.
  void DoCrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape, const Tensor& out,
                        const Tensor& statistics, Stream& stream) const override;
  void DoCrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                const Tensor& statistics, const CrossAttentionShape& shape,
                                const CrossAttentionGrads& grads, Stream& stream) const override;
  void DoCopyRows(const Tensor& x, const Tensor& out, Stream& stream) const override;
  // `grad_logits` may be `logits`: the rows are replaced one by one.
  void DoCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                      Stream& stream) const override;
  void DoCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, Stream& stream) const override;
  void DoCrossEntropyWithGradient(const Tensor& logits, const Tensor& targets, float scale, const Tensor& loss,
                                  const Tensor& statistics, Stream& stream) const override;

  const int threads_;
  // Shared with the work on streams, which may outlive this object.
  const std::shared_ptr<const HostMatmul> matmul_;       // on `threads_` threads
  const std::shared_ptr<const HostMatmul> head_matmul_;  // on one, for attention
};

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_LAYER_OPS_H_
