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
#include "fsdp/nn/host/kernel_grain.h"
#include "fsdp/tensor/kernel_threads.h"

namespace fsdp {
namespace {

// LayerOps has made sure that `t` is a matrix.
int64_t Rows(const Tensor& t) { return t.shape().rank() == 2 ? t.shape().dim(0) : 0; }
int64_t Cols(const Tensor& t) { return t.shape().rank() == 2 ? t.shape().dim(1) : 0; }

// Working memory, or undefined with the failure put on `stream`.
Tensor Scratch(int64_t nbytes, Stream& stream) {
  absl::StatusOr<Tensor> scratch = Tensor::Empty(stream.device(), DType::kUInt8, {nbytes});
  if (scratch.ok()) return *scratch;
  stream.Run([status = scratch.status()] { return status; });
  return Tensor();
}

AttentionShape OfBatch(AttentionShape shape, const Interval& batch) {
  shape.batch = batch.size();
  return shape;
}

}  // namespace

HostLayerOps::HostLayerOps(int kernel_threads)
    : threads_(kernel_threads),
      matmul_(std::make_shared<HostMatmul>(kernel_threads)),
      // With heads on several threads, a product must not start a team inside each of them.
      head_matmul_(kernel_threads == 1 ? matmul_ : std::make_shared<HostMatmul>(1)) {}

void HostLayerOps::DoEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const {
  stream.Run([=] { return HostEmbedding(tokens, table, out); });
}

void HostLayerOps::DoEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                                       const Tensor& grad_table, Stream& stream) const {
  stream.Run([=] {
    // One thread: rows of the table may have any number of terms, and each must be summed in order.
    HostEmbeddingBackward(tokens, grad_out, padding_idx, grad_table);
    return absl::OkStatus();
  });
}

void HostLayerOps::DoMatmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c,
                            const MatmulOptions& options, Stream& stream) const {
  stream.Run([=, matmul = matmul_] {
    // Operands are dense here, so the columns of each are the distance between its rows. Only attention has strided
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

void HostLayerOps::DoBiasBackward(const Tensor& grad_out, const Tensor& grad_bias, Stream& stream) const {
  stream.Run([=, threads = threads_] {
    HostBiasBackward(grad_out, grad_bias, threads);
    return absl::OkStatus();
  });
}

void HostLayerOps::DoAdd(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const {
  stream.Run([=, threads = threads_] {
    // Pieces split at elements: each element's result depends only on its own inputs, so any split gives the same bits.
    ParallelFor(threads, a.numel(), kElementGrain,
                [&](int, Interval i) { HostAdd(Piece(a, i), Piece(b, i), Piece(out, i)); });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                               const Tensor& mean, const Tensor& rstd, Stream& stream) const {
  stream.Run([=, threads = threads_, columns = weight.numel()] {
    ParallelFor(threads, mean.numel(), RowGrain(columns), [&](int, Interval rows) {
      HostLayerNorm(RowPiece(x, rows, columns), weight, bias, eps, RowPiece(out, rows, columns), Piece(mean, rows),
                    Piece(rstd, rows));
    });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight,
                                       const Tensor& mean, const Tensor& rstd, const Tensor& grad_x,
                                       const Tensor& grad_weight, const Tensor& grad_bias, Stream& stream) const {
  stream.Run([=, threads = threads_] {
    HostLayerNormBackward(grad_out, x, weight, mean, rstd, grad_x, grad_weight, grad_bias, threads);
    return absl::OkStatus();
  });
}

void HostLayerOps::DoRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                             Stream& stream) const {
  stream.Run([=, threads = threads_, columns = weight.numel()] {
    ParallelFor(threads, rstd.numel(), RowGrain(columns), [&](int, Interval rows) {
      HostRmsNorm(RowPiece(x, rows, columns), weight, eps, RowPiece(out, rows, columns), Piece(rstd, rows));
    });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                                     const Tensor& grad_x, const Tensor& grad_weight, Stream& stream) const {
  stream.Run([=, threads = threads_] {
    HostRmsNormBackward(grad_out, x, weight, rstd, grad_x, grad_weight, threads);
    return absl::OkStatus();
  });
}

void HostLayerOps::DoActivate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const {
  stream.Run([=, threads = threads_] {
    ParallelFor(threads, x.numel(), kElementGrain,
                [&](int, Interval i) { HostActivate(kind, Piece(x, i), Piece(out, i)); });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x,
                                      const Tensor& grad_x, Stream& stream) const {
  stream.Run([=, threads = threads_] {
    ParallelFor(threads, x.numel(), kElementGrain, [&](int, Interval i) {
      HostActivateBackward(kind, Piece(grad_out, i), Piece(x, i), Piece(grad_x, i));
    });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                                   Stream& stream) const {
  stream.Run([=, threads = threads_] {
    ParallelFor(threads, gate.numel(), kElementGrain,
                [&](int, Interval i) { HostActivateGated(kind, Piece(gate, i), Piece(up, i), Piece(out, i)); });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate,
                                           const Tensor& up, const Tensor& grad_gate, const Tensor& grad_up,
                                           Stream& stream) const {
  stream.Run([=, threads = threads_] {
    ParallelFor(threads, gate.numel(), kElementGrain, [&](int, Interval i) {
      HostActivateGatedBackward(kind, Piece(grad_out, i), Piece(gate, i), Piece(up, i), Piece(grad_gate, i),
                                Piece(grad_up, i));
    });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const {
  stream.Run([=, threads = threads_] {
    ParallelFor(threads, x.numel(), kElementGrain, [&](int, Interval i) {
      DropoutMask of_piece = mask;
      // The mask counts elements of the global batch, so a piece starts at its own number.
      of_piece.first += static_cast<uint64_t>(i.begin);
      HostDropout(Piece(x, i), of_piece, Piece(out, i));
    });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns,
                            Stream& stream) const {
  stream.Run([=] {
    HostUnfold(image, shape, columns);
    return absl::OkStatus();
  });
}

void HostLayerOps::DoFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image,
                          Stream& stream) const {
  stream.Run([=] {
    HostFold(columns, shape, image);
    return absl::OkStatus();
  });
}

void HostLayerOps::DoRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                               const AttentionShape& shape, const Tensor& qkv, Stream& stream) const {
  stream.Run([=, threads = threads_] {
    // By sequence, because positions, and so angles, restart with each one.
    ParallelFor(threads, shape.batch, /*grain=*/1, [&](int, Interval batch) {
      const Interval rows = {batch.begin * shape.seq_len, batch.end * shape.seq_len};
      HostRotateQkv(RowPiece(q, rows, shape.q_width()), RowPiece(k, rows, shape.kv_width()),
                    RowPiece(v, rows, shape.kv_width()), rotation, OfBatch(shape, batch),
                    RowPiece(qkv, rows, shape.qkv_width()));
    });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                                       const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                                       Stream& stream) const {
  stream.Run([=, threads = threads_] {
    ParallelFor(threads, shape.batch, /*grain=*/1, [&](int, Interval batch) {
      const Interval rows = {batch.begin * shape.seq_len, batch.end * shape.seq_len};
      HostRotateQkvBackward(RowPiece(grad_qkv, rows, shape.qkv_width()), rotation, OfBatch(shape, batch),
                            RowPiece(grad_q, rows, shape.q_width()), RowPiece(grad_k, rows, shape.kv_width()),
                            RowPiece(grad_v, rows, shape.kv_width()));
    });
    return absl::OkStatus();
  });
}

void HostLayerOps::DoCausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out,
                                     const Tensor& statistics, Stream& stream) const {
  // Allocated before the work is put on the stream, so that a failure takes its place there.
  const Tensor scratch = Scratch(AttentionScratchBytes(shape, qkv.dtype(), threads_), stream);
  if (!scratch.defined()) return;
  stream.Run([=, matmul = head_matmul_, threads = threads_] {
    return HostCausalAttention(*matmul, qkv, shape, out, statistics, scratch, threads);
  });
}

void HostLayerOps::DoCausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& out,
                                             const Tensor& statistics, const AttentionShape& shape,
                                             const Tensor& grad_qkv, Stream& stream) const {
  const Tensor scratch = Scratch(AttentionScratchBytes(shape, qkv.dtype(), threads_), stream);
  if (!scratch.defined()) return;
  stream.Run([=, matmul = head_matmul_, threads = threads_] {
    return HostCausalAttentionBackward(*matmul, {grad_out, qkv, out, statistics}, shape, grad_qkv, scratch, threads);
  });
}

void HostLayerOps::DoCrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape,
                                    const Tensor& out, const Tensor& statistics, Stream& stream) const {
  const Tensor scratch = Scratch(CrossAttentionScratchBytes(shape, out.dtype(), threads_), stream);
  if (!scratch.defined()) return;
  stream.Run([=, matmul = head_matmul_, threads = threads_] {
    return HostCrossAttention(*matmul, operands, shape, out, statistics, scratch, threads);
  });
}

void HostLayerOps::DoCrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                            const Tensor& statistics, const CrossAttentionShape& shape,
                                            const CrossAttentionGrads& grads, Stream& stream) const {
  const Tensor scratch = Scratch(CrossAttentionScratchBytes(shape, grad_out.dtype(), threads_), stream);
  if (!scratch.defined()) return;
  stream.Run([=, matmul = head_matmul_, threads = threads_] {
    return HostCrossAttentionBackward(*matmul, grad_out, operands, statistics, shape, grads, scratch, threads);
  });
}

void HostLayerOps::DoCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss,
                                  const Tensor& statistics, Stream& stream) const {
  stream.Run([=, threads = threads_] { return HostCrossEntropy(logits, targets, loss, statistics, threads); });
}

void HostLayerOps::DoCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics,
                                          float scale, const Tensor& grad_logits, Stream& stream) const {
  stream.Run([=, threads = threads_] {
    HostCrossEntropyBackward(logits, targets, statistics, scale, grad_logits, threads);
    return absl::OkStatus();
  });
}

void HostLayerOps::DoCrossEntropyWithGradient(const Tensor& logits, const Tensor& targets, float scale,
                                              const Tensor& loss, const Tensor& statistics, Stream& stream) const {
  // Two pieces of work in stream order; the second reads the statistics of the first and overwrites the logits.
  DoCrossEntropy(logits, targets, loss, statistics, stream);
  DoCrossEntropyBackward(logits, targets, statistics, scale, logits, stream);
}

void HostLayerOps::DoCopyRows(const Tensor& x, const Tensor& out, Stream& stream) const {
  // Contiguous on hosts, whose RowStride adds no padding.
  stream.CopyAsync(out.data(), x.data(), x.nbytes());
}

}  // namespace fsdp
