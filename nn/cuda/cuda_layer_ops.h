// SPDX-License-Identifier: Apache-2.0
//
// CudaLayerOps: LayerOps on a CUDA device. Each call puts its kernels on the stream immediately; the kernels are in the
// other cuda_*.h of this folder. Linking this library makes LayerOpsFor know CUDA devices. Sums have a fixed order,
// which depends on shapes only; a token or target that is out of range fails the stream at its next wait for the GPU.
// Thread-safe.
#ifndef FSDP_NN_CUDA_CUDA_LAYER_OPS_H_
#define FSDP_NN_CUDA_CUDA_LAYER_OPS_H_

#include <memory>
#include <string>

#include "fsdp/nn/cuda/cuda_fused_attention.h"
#include "fsdp/nn/cuda/cuda_matmul.h"
#include "fsdp/nn/ops/layer_ops.h"

namespace fsdp {

// Contracts as in LayerOps; attention has kernels up to kMaxCudaHeadDim, and fails the stream with kUnimplemented
// beyond. Causal attention refuses float16 with the same code. A stream of another device is a bug and aborts. Calls
// that need memory between their kernels take the workspace of the stream; if the device has no room for it, the stream
// fails with kResourceExhausted.
class CudaLayerOps final : public LayerOps {
 public:
  // On the GPU of number `ordinal`. Cheap: cuBLASLt is opened by the first product, and cuDNN by the first attention
  // that may use it.
  explicit CudaLayerOps(int ordinal);

  // 16-bit rows whose length is not a multiple of 16 bytes get padding (cuda_rows.h).
  int64_t RowStride(DType dtype, int64_t columns) const override;
  std::string AttentionKernels(const AttentionShape& shape, DType dtype) const override;

 private:
  // Kernels that read values of tokens or targets report the first one out of range through the stream's KernelFailure.
  void DoEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const override;
  void DoEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table, Stream& stream) const override;
  void DoCopyRows(const Tensor& x, const Tensor& out, Stream& stream) const override;
  // By cuBLASLt; the bias and the accumulation are part of the product.
  void DoMatmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c, const MatmulOptions& options,
                Stream& stream) const override;
  // Sums over rows in two kernels; see cuda_column_sums.h.
  void DoBiasBackward(const Tensor& grad_out, const Tensor& grad_bias, Stream& stream) const override;
  // Elementwise kernels load several packs of 16 bytes at a time if all operands have the same alignment (cuda/pack.h).
  void DoAdd(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const override;
  // A team of warps for each row, which is read once. Backward computes the gradients of parameters, unless undefined,
  // in the same pass, and a second, small kernel adds the blocks' sums.
  void DoLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd, Stream& stream) const override;
  void DoLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& grad_x, const Tensor& grad_weight, const Tensor& grad_bias,
                           Stream& stream) const override;
  void DoRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                 Stream& stream) const override;
  void DoRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, const Tensor& grad_weight, Stream& stream) const override;
  // The same kernels: the addition costs a pass of the residual and one of the sum.
  void DoAddLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                      const Tensor& mean, const Tensor& rstd, Stream& stream) const override;
  void DoAddRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                    Stream& stream) const override;
  void DoAddLayerNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum, const Tensor& weight,
                              const Tensor& mean, const Tensor& rstd, const NormGrads& grads,
                              Stream& stream) const override;
  void DoAddRmsNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum, const Tensor& weight,
                            const Tensor& rstd, const NormGrads& grads, Stream& stream) const override;
  void DoActivate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const override;
  void DoActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                          Stream& stream) const override;
  void DoActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                       Stream& stream) const override;
  void DoActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, const Tensor& grad_up, Stream& stream) const override;
  // A thread computes a block of four random numbers.
  void DoDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const override;
  // A thread for each element that is written.
  void DoUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns,
                Stream& stream) const override;
  void DoFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image, Stream& stream) const override;
  // A kernel for each direction; every element is read once and written once.
  void DoRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                   const AttentionShape& shape, const Tensor& qkv, Stream& stream) const override;
  void DoRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                           const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                           Stream& stream) const override;
  // By cuDNN if CudaFusedAttention serves the call. Else in tiles that never leave a block: O(T) memory per head, and
  // no T x T tensor.
  void DoCausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                         Stream& stream) const override;
  void DoCausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& out, const Tensor& statistics,
                                 const AttentionShape& shape, const Tensor& grad_qkv, Stream& stream) const override;
  // A block for each query forward, and for each query and each key backward; up to kMaxCrossAttentionLength of either.
  void DoCrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape, const Tensor& out,
                        const Tensor& statistics, Stream& stream) const override;
  void DoCrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                const Tensor& statistics, const CrossAttentionShape& shape,
                                const CrossAttentionGrads& grads, Stream& stream) const override;
  // A block for each row; a second kernel adds the row losses in a fixed order.
  void DoCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                      Stream& stream) const override;
  void DoCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, Stream& stream) const override;
  // The row stays in shared memory between the two passes if it fits.
  void DoCrossEntropyWithGradient(const Tensor& logits, const Tensor& targets, float scale, const Tensor& loss,
                                  const Tensor& statistics, Stream& stream) const override;

  const int ordinal_;
  const std::shared_ptr<CudaMatmul> matmul_;  // shared with work that streams put off
  const std::unique_ptr<CudaFusedAttention> fused_attention_;
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_LAYER_OPS_H_
