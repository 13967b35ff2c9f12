// SPDX-License-Identifier: Apache-2.0
//
// Every function has one form: a closure that holds the tensors by value, so that their memory lives until it has run,
// put on the stream. The kernels that can fail return their Status to the stream; the others return OK. Preparations
// that can fail on the calling thread (working memory) put their failure on the stream too.
#include "fsdp/nn/host/host_layer_ops.h"

#include "absl/status/status.h"
#include "fsdp/nn/host/host_attention.h"
#include "fsdp/nn/host/host_column_sums.h"
#include "fsdp/nn/host/host_cross_attention.h"
#include "fsdp/nn/host/host_cross_entropy.h"
#include "fsdp/nn/host/host_dropout.h"
#include "fsdp/nn/host/host_elementwise.h"
#include "fsdp/nn/host/host_embedding.h"
#include "fsdp/nn/host/host_fold.h"
#include "fsdp/nn/host/host_norm.h"
#include "fsdp/nn/host/host_rotation.h"

namespace fsdp {
namespace {

// 0 unless `t` is a matrix, which CheckedLayerOps has made sure of.
int64_t Rows(const Tensor& t) { return t.shape().rank() == 2 ? t.shape().dim(0) : 0; }
int64_t Cols(const Tensor& t) { return t.shape().rank() == 2 ? t.shape().dim(1) : 0; }

// Working memory, or undefined with the failure put on `stream`.
Tensor Scratch(int64_t nbytes, Stream& stream) {
  absl::StatusOr<Tensor> scratch = Tensor::Empty(stream.device(), DType::kUInt8, {nbytes});
  if (scratch.ok()) return *scratch;
  stream.Run([status = scratch.status()] { return status; });
  return Tensor();
}

}  // namespace

HostLayerOps::HostLayerOps(int kernel_threads) : matmul_(std::make_shared<HostMatmul>(kernel_threads)) {}

void HostLayerOps::Embedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const {
  stream.Run([=] { return HostEmbedding(tokens, table, out); });
}

void HostLayerOps::EmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                                     const Tensor& grad_table, Stream& stream) const {
  stream.Run([=] {
    HostEmbeddingBackward(tokens, grad_out, padding_idx, grad_table);
    return absl::OkStatus();
  });
}

void HostLayerOps::Matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c,
                          const MatmulOptions& options, Stream& stream) const {
  stream.Run([=, matmul = matmul_] {
    // Operands are dense here, so the columns of each are the distance between its rows. Attention alone has strided
    // ones.
    return matmul->Run({.m = Rows(c),
                        .n = Cols(c),
                        .k = options.transpose_a ? Rows(a) : Cols(a),
                        .a = a.data(),
                        .b = b.data(),
                        .bias = bias.defined() ? bias.data() : nullptr,
                        .c = c.data(),
                        .lda = Cols(a),
                        .ldb = Cols(b),
                        .ldc = Cols(c),
                        .dtype = a.dtype(),
                        .c_dtype = c.dtype(),
                        .transpose_a = options.transpose_a,
                        .transpose_b = options.transpose_b,
                        .accumulate = options.accumulate});
  });
}

void HostLayerOps::BiasBackward(const Tensor& grad_out, const Tensor& grad_bias, Stream& stream) const {
  stream.Run([=] {
    HostBiasBackward(grad_out, grad_bias);
    return absl::OkStatus();
  });
}

void HostLayerOps::Add(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const {
  stream.Run([=] {
    HostAdd(a, b, out);
    return absl::OkStatus();
  });
}

void HostLayerOps::LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                             const Tensor& mean, const Tensor& rstd, Stream& stream) const {
  stream.Run([=] {
    HostLayerNorm(x, weight, bias, eps, out, mean, rstd);
    return absl::OkStatus();
  });
}

void HostLayerOps::LayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& grad_x, const Tensor& grad_weight,
                                     const Tensor& grad_bias, Stream& stream) const {
  stream.Run([=] {
    HostLayerNormBackward(grad_out, x, weight, mean, rstd, grad_x, grad_weight, grad_bias);
    return absl::OkStatus();
  });
}

void HostLayerOps::RmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                           Stream& stream) const {
  stream.Run([=] {
    HostRmsNorm(x, weight, eps, out, rstd);
    return absl::OkStatus();
  });
}

void HostLayerOps::RmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                                   const Tensor& grad_x, const Tensor& grad_weight, Stream& stream) const {
  stream.Run([=] {
    HostRmsNormBackward(grad_out, x, weight, rstd, grad_x, grad_weight);
    return absl::OkStatus();
  });
}

void HostLayerOps::Activate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const {
  stream.Run([=] {
    HostActivate(kind, x, out);
    return absl::OkStatus();
  });
}

void HostLayerOps::ActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                                    Stream& stream) const {
  stream.Run([=] {
    HostActivateBackward(kind, grad_out, x, grad_x);
    return absl::OkStatus();
  });
}

void HostLayerOps::ActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                                 Stream& stream) const {
  stream.Run([=] {
    HostActivateGated(kind, gate, up, out);
    return absl::OkStatus();
  });
}

void HostLayerOps::ActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate,
                                         const Tensor& up, const Tensor& grad_gate, const Tensor& grad_up,
                                         Stream& stream) const {
  stream.Run([=] {
    HostActivateGatedBackward(kind, grad_out, gate, up, grad_gate, grad_up);
    return absl::OkStatus();
  });
}

void HostLayerOps::Dropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const {
  stream.Run([=] {
    HostDropout(x, mask, out);
    return absl::OkStatus();
  });
}

void HostLayerOps::Unfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns,
                          Stream& stream) const {
  stream.Run([=] {
    HostUnfold(image, shape, columns);
    return absl::OkStatus();
  });
}

void HostLayerOps::Fold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image,
                        Stream& stream) const {
  stream.Run([=] {
    HostFold(columns, shape, image);
    return absl::OkStatus();
  });
}

void HostLayerOps::RotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                             const AttentionShape& shape, const Tensor& qkv, Stream& stream) const {
  stream.Run([=] {
    HostRotateQkv(q, k, v, rotation, shape, qkv);
    return absl::OkStatus();
  });
}

void HostLayerOps::RotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                                     const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                                     Stream& stream) const {
  stream.Run([=] {
    HostRotateQkvBackward(grad_qkv, rotation, shape, grad_q, grad_k, grad_v);
    return absl::OkStatus();
  });
}

void HostLayerOps::CausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out,
                                   const Tensor& statistics, Stream& stream) const {
  const Tensor scratch = Scratch(AttentionScratchBytes(shape, qkv.dtype()), stream);
  if (!scratch.defined()) return;
  stream.Run([=, matmul = matmul_] { return HostCausalAttention(*matmul, qkv, shape, out, statistics, scratch); });
}

void HostLayerOps::CausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& statistics,
                                           const AttentionShape& shape, const Tensor& grad_qkv, Stream& stream) const {
  const Tensor scratch = Scratch(AttentionScratchBytes(shape, qkv.dtype()), stream);
  if (!scratch.defined()) return;
  stream.Run([=, matmul = matmul_] {
    return HostCausalAttentionBackward(*matmul, grad_out, qkv, statistics, shape, grad_qkv, scratch);
  });
}

void HostLayerOps::CrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape,
                                  const Tensor& out, const Tensor& statistics, Stream& stream) const {
  const Tensor scratch = Scratch(CrossAttentionScratchBytes(shape, out.dtype()), stream);
  if (!scratch.defined()) return;
  stream.Run([=, matmul = matmul_] { return HostCrossAttention(*matmul, operands, shape, out, statistics, scratch); });
}

void HostLayerOps::CrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                          const Tensor& statistics, const CrossAttentionShape& shape,
                                          const CrossAttentionGrads& grads, Stream& stream) const {
  const Tensor scratch = Scratch(CrossAttentionScratchBytes(shape, grad_out.dtype()), stream);
  if (!scratch.defined()) return;
  stream.Run([=, matmul = matmul_] {
    return HostCrossAttentionBackward(*matmul, grad_out, operands, statistics, shape, grads, scratch);
  });
}

void HostLayerOps::CrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss,
                                const Tensor& statistics, Stream& stream) const {
  stream.Run([=] { return HostCrossEntropy(logits, targets, loss, statistics); });
}

void HostLayerOps::CrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics,
                                        float scale, const Tensor& grad_logits, Stream& stream) const {
  stream.Run([=] {
    HostCrossEntropyBackward(logits, targets, statistics, scale, grad_logits);
    return absl::OkStatus();
  });
}

}  // namespace fsdp
