// SPDX-License-Identifier: Apache-2.0
//
// Every function has one form: a closure that holds the tensors by value, so that their memory lives until it has run,
// put on the stream. The kernels that can fail return their Status to the stream; the others return OK. Preparations
// that can fail on the calling thread (working memory) put their failure on the stream too.
#include "fsdp/nn/host/host_layer_ops.h"

#include <cstring>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "fsdp/nn/host/host_attention.h"
#include "fsdp/nn/host/host_column_sums.h"
#include "fsdp/nn/host/host_cross_attention.h"
#include "fsdp/nn/host/host_cross_entropy.h"
#include "fsdp/nn/host/host_dropout.h"
#include "fsdp/nn/host/host_elementwise.h"
#include "fsdp/nn/host/host_embedding.h"
#include "fsdp/nn/host/host_fold.h"
#include "fsdp/nn/host/host_matmul.h"
#include "fsdp/nn/host/host_norm.h"
#include "fsdp/nn/host/host_rotation.h"
#include "fsdp/nn/host/kernel_grain.h"
#include "fsdp/nn/ops/layer_ops.h"
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

class HostLayerOps final : public LayerOps {
 public:
  explicit HostLayerOps(int kernel_threads)
      : threads_(kernel_threads),
        matmul_(std::make_shared<HostMatmul>(kernel_threads)),
        // With heads on several threads, a product must not start a team inside each of them.
        head_matmul_(kernel_threads == 1 ? matmul_ : std::make_shared<HostMatmul>(1)) {}

  // Rows are contiguous.
  int64_t RowStride(DType, int64_t columns) const override { return columns; }

 private:
  // A token or target out of range is kOutOfRange, found when the work runs; outputs may then be half written.
  void DoEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out, Stream& stream) const override {
    stream.Run([=] { return HostEmbedding(tokens, table, out); });
  }

  void DoEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table, Stream& stream) const override {
    stream.Run([=] {
      // One thread: rows of the table may have any number of terms, and each must be summed in order.
      HostEmbeddingBackward(tokens, grad_out, padding_idx, grad_table);
      return absl::OkStatus();
    });
  }

  // By oneDNN, on up to `kernel_threads` threads; the operands are dense.
  void DoMatmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c, const MatmulOptions& options,
                Stream& stream) const override {
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

  // Sums over rows as in ColumnSums: float32 for 32 rows, float64 beyond, in row order.
  void DoBiasBackward(const Tensor& grad_out, const ParameterGrad& grad_bias, Stream& stream) const override {
    stream.Run([=, threads = threads_] {
      HostBiasBackward(grad_out, grad_bias, threads);
      return absl::OkStatus();
    });
  }

  // Elementwise in float32, rounded once; `out` may be an operand.
  void DoAdd(const Tensor& a, const Tensor& b, const Tensor& out, Stream& stream) const override {
    stream.Run([=, threads = threads_] {
      // Pieces split at elements: each element's result depends only on its own inputs, so any split gives the same
      // bits.
      ParallelFor(threads, a.numel(), kElementGrain,
                  [&](int, Interval i) { HostAdd(Piece(a, i), Piece(b, i), Piece(out, i)); });
      return absl::OkStatus();
    });
  }

  // Norms, activations and rotations are vectorised for the processor.
  void DoLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                   const Tensor& mean, const Tensor& rstd, Stream& stream) const override {
    stream.Run([=, threads = threads_, columns = weight.numel()] {
      ParallelFor(threads, mean.numel(), RowGrain(columns), [&](int, Interval rows) {
        HostLayerNorm(RowPiece(x, rows, columns), weight, bias, eps, RowPiece(out, rows, columns), Piece(mean, rows),
                      Piece(rstd, rows));
      });
      return absl::OkStatus();
    });
  }

  void DoLayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& rstd, const Tensor& grad_x, const ParameterGrad& grad_weight,
                           const ParameterGrad& grad_bias, Stream& stream) const override {
    stream.Run([=, threads = threads_] {
      HostLayerNormBackward(grad_out, x, weight, mean, rstd, grad_x, grad_weight, grad_bias, threads);
      return absl::OkStatus();
    });
  }

  void DoRmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                 Stream& stream) const override {
    stream.Run([=, threads = threads_, columns = weight.numel()] {
      ParallelFor(threads, rstd.numel(), RowGrain(columns), [&](int, Interval rows) {
        HostRmsNorm(RowPiece(x, rows, columns), weight, eps, RowPiece(out, rows, columns), Piece(rstd, rows));
      });
      return absl::OkStatus();
    });
  }

  void DoRmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& grad_x, const ParameterGrad& grad_weight, Stream& stream) const override {
    stream.Run([=, threads = threads_] {
      HostRmsNormBackward(grad_out, x, weight, rstd, grad_x, grad_weight, threads);
      return absl::OkStatus();
    });
  }

  void DoActivate(ActivationKind kind, const Tensor& x, const Tensor& out, Stream& stream) const override {
    stream.Run([=, threads = threads_] {
      ParallelFor(threads, x.numel(), kElementGrain,
                  [&](int, Interval i) { HostActivate(kind, Piece(x, i), Piece(out, i)); });
      return absl::OkStatus();
    });
  }

  void DoActivateBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& x, const Tensor& grad_x,
                          Stream& stream) const override {
    stream.Run([=, threads = threads_] {
      ParallelFor(threads, x.numel(), kElementGrain, [&](int, Interval i) {
        HostActivateBackward(kind, Piece(grad_out, i), Piece(x, i), Piece(grad_x, i));
      });
      return absl::OkStatus();
    });
  }

  void DoActivateGated(ActivationKind kind, const Tensor& gate, const Tensor& up, const Tensor& out,
                       Stream& stream) const override {
    stream.Run([=, threads = threads_] {
      ParallelFor(threads, gate.numel(), kElementGrain,
                  [&](int, Interval i) { HostActivateGated(kind, Piece(gate, i), Piece(up, i), Piece(out, i)); });
      return absl::OkStatus();
    });
  }

  void DoActivateGatedBackward(ActivationKind kind, const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, const Tensor& grad_up, Stream& stream) const override {
    stream.Run([=, threads = threads_] {
      ParallelFor(threads, gate.numel(), kElementGrain, [&](int, Interval i) {
        HostActivateGatedBackward(kind, Piece(grad_out, i), Piece(gate, i), Piece(up, i), Piece(grad_gate, i),
                                  Piece(grad_up, i));
      });
      return absl::OkStatus();
    });
  }

  // In runs of 1024 numbers, made by base/random.h.
  void DoDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, Stream& stream) const override {
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

  void DoUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns,
                Stream& stream) const override {
    stream.Run([=] {
      HostUnfold(image, shape, columns);
      return absl::OkStatus();
    });
  }

  void DoFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image,
              Stream& stream) const override {
    stream.Run([=] {
      HostFold(columns, shape, image);
      return absl::OkStatus();
    });
  }

  // Forward rotates q and k and interleaves them with v; backward takes them apart and rotates back.
  void DoRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                   const AttentionShape& shape, const Tensor& qkv, Stream& stream) const override {
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

  void DoRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                           const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                           Stream& stream) const override {
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

  // Attention takes working memory of the device for the time of the call, forward and backward: AttentionScratchBytes.
  void DoCausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                         Stream& stream) const override {
    // Allocated before the work is put on the stream, so that a failure takes its place there.
    const Tensor scratch = Scratch(AttentionScratchBytes(shape, qkv.dtype(), threads_), stream);
    if (!scratch.defined()) return;
    stream.Run([=, matmul = head_matmul_, threads = threads_] {
      return HostCausalAttention(*matmul, qkv, shape, out, statistics, scratch, threads);
    });
  }

  void DoCausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& out, const Tensor& statistics,
                                 const AttentionShape& shape, const Tensor& grad_qkv, Stream& stream) const override {
    const Tensor scratch = Scratch(AttentionScratchBytes(shape, qkv.dtype(), threads_), stream);
    if (!scratch.defined()) return;
    stream.Run([=, matmul = head_matmul_, threads = threads_] {
      return HostCausalAttentionBackward(*matmul, {grad_out, qkv, out, statistics}, shape, grad_qkv, scratch, threads);
    });
  }

  // Working memory as for causal attention: one block of queries and one head.
  void DoCrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape, const Tensor& out,
                        const Tensor& statistics, Stream& stream) const override {
    const Tensor scratch = Scratch(CrossAttentionScratchBytes(shape, out.dtype(), threads_), stream);
    if (!scratch.defined()) return;
    stream.Run([=, matmul = head_matmul_, threads = threads_] {
      return HostCrossAttention(*matmul, operands, shape, out, statistics, scratch, threads);
    });
  }

  void DoCrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                const Tensor& statistics, const CrossAttentionShape& shape,
                                const CrossAttentionGrads& grads, Stream& stream) const override {
    const Tensor scratch = Scratch(CrossAttentionScratchBytes(shape, grad_out.dtype(), threads_), stream);
    if (!scratch.defined()) return;
    stream.Run([=, matmul = head_matmul_, threads = threads_] {
      return HostCrossAttentionBackward(*matmul, grad_out, operands, statistics, shape, grads, scratch, threads);
    });
  }

  // `grad_logits` may be `logits`: the rows are replaced one by one.
  void DoCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                      Stream& stream) const override {
    stream.Run([=, threads = threads_] { return HostCrossEntropy(logits, targets, loss, statistics, threads); });
  }

  void DoCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, Stream& stream) const override {
    stream.Run([=, threads = threads_] {
      HostCrossEntropyBackward(logits, targets, statistics, scale, grad_logits, threads);
      return absl::OkStatus();
    });
  }

  void DoCrossEntropyWithGradient(const Tensor& logits, const Tensor& targets, float scale, const Tensor& loss,
                                  const Tensor& statistics, Stream& stream) const override {
    // Two pieces of work in stream order; the second reads the statistics of the first and overwrites the logits.
    DoCrossEntropy(logits, targets, loss, statistics, stream);
    DoCrossEntropyBackward(logits, targets, statistics, scale, logits, stream);
  }

  void DoCopyRows(const Tensor& x, const Tensor& out, Stream& stream) const override {
    // Contiguous on hosts, whose RowStride adds no padding. Not by CopyAsync, which does not hold the tensors.
    stream.Run([=] {
      std::memcpy(out.data(), x.data(), x.nbytes());
      return absl::OkStatus();
    });
  }

  const int threads_;
  // Shared with the work on streams, which may outlive this object.
  const std::shared_ptr<const HostMatmul> matmul_;       // on `threads_` threads
  const std::shared_ptr<const HostMatmul> head_matmul_;  // on one, for attention
};

}  // namespace

std::unique_ptr<const LayerOps> NewHostLayerOps(int kernel_threads) {
  return std::make_unique<HostLayerOps>(kernel_threads);
}

}  // namespace fsdp
