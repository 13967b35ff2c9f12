// SPDX-License-Identifier: Apache-2.0
//
// For each sequence and head, in blocks of 128 queries, with q, k, v [T, D] read in place from the rows of qkv:
//
//          keys 0 ............ T
//   q  +--------+                     block i: queries [128 i, 128 (i + 1)) by keys [0, 128 (i + 1)).
//   u  | block 0|                     Only the corner of a block is beyond the diagonal, so about half
//   e  +--------+--------+            of the T x T scores are computed.
//   r  |     block 1     |
//   .  +-----------------+--------+
//      |          block 2         |
//      +--------------------------+
//
//   forward     s = q k^T;  p = softmax(scale s), masked;  out = p v                            2 products
//   backward    s and p again, from the kept statistics of each row
//               dp = dout v^T;  dv += p^T dout;  ds = scale p (dp - row sum of p dp)
//               dq = ds k;  dk += ds^T q                                                        5 products
//
// AttentionRounding::kOnline differs in two places: forward, p is e^(scale s - maximum) and its product with v is
// divided by the row's sum; backward, the row sums of p dp equal the row sums of dout out.
//
// Why blocks of whole rows and not square tiles with an online softmax: the products are then large enough to be worth
// a call of oneDNN each, and softmax sees a whole row. Working memory is two blocks of 128 x T floats, with their
// 16-bit copies, for each thread, whatever the batch. A block's dq is complete; dk and dv are sums over blocks, in
// float32 (grad_kv), in ascending order of queries, and with grouped queries also over the heads of a group. So every
// sum has one order.
#include "fsdp/nn/host/host_attention.h"

#include <algorithm>
#include <cstddef>

#include "fsdp/base/status_macros.h"
#include "fsdp/nn/host/host_elementwise.h"
#include "fsdp/nn/host/host_softmax.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/kernel_threads.h"

namespace fsdp {
namespace {

// More rows waste more beyond the diagonal; fewer make the products small.
constexpr int64_t kBlockRows = 128;

// Rounded probabilities and gradients of scores exist only for 16-bit models, whose products read 16 bits.
bool IsRounded(DType dtype) { return dtype != DType::kFloat32; }

int64_t BlockRows(const AttentionShape& shape) { return std::min(kBlockRows, shape.seq_len); }

// Offsets of the parts of the working memory, in bytes. Each starts on a cache line.
struct ScratchLayout {
  ScratchLayout(const AttentionShape& shape, DType dtype) {
    const int64_t block = BlockRows(shape) * shape.seq_len;
    const int64_t rounded = IsRounded(dtype) ? block * SizeOf(dtype) : 0;
    const int64_t float_size = SizeOf(DType::kFloat32);
    scores = Take(block * float_size);
    grads = Take(block * float_size);
    rounded_probabilities = Take(rounded);
    rounded_grads = Take(rounded);
    rows = Take(BlockRows(shape) * float_size);
    row_values = Take(BlockRows(shape) * shape.head_dim * float_size);
    grad_kv = Take(2 * shape.seq_len * shape.head_dim * float_size);
    group_kv = Take(shape.num_heads == shape.kv_heads() ? 0 : 2 * shape.seq_len * shape.head_dim * float_size);
  }

  int64_t Take(int64_t part_bytes) {
    const int64_t begin = nbytes;
    nbytes += (part_bytes + 63) / 64 * 64;
    return begin;
  }

  int64_t nbytes = 0;
  int64_t scores, grads, rounded_probabilities, rounded_grads, rows, row_values, grad_kv, group_kv;
};

// The working memory of one block, and of sums over blocks and heads.
struct Scratch {
  Scratch(const AttentionShape& shape, DType dtype, std::byte* memory) {
    const ScratchLayout layout(shape, dtype);
    scores = reinterpret_cast<float*>(memory + layout.scores);
    grads = reinterpret_cast<float*>(memory + layout.grads);
    if (IsRounded(dtype)) {
      rounded_probabilities = memory + layout.rounded_probabilities;
      rounded_grads = memory + layout.rounded_grads;
    }
    rows = reinterpret_cast<float*>(memory + layout.rows);
    row_values = reinterpret_cast<float*>(memory + layout.row_values);
    grad_kv = reinterpret_cast<float*>(memory + layout.grad_kv);
    group_kv = reinterpret_cast<float*>(memory + layout.group_kv);
  }

  float* scores;                          // [rows, keys], then the probabilities
  float* grads;                           // likewise, of the probabilities, then of the scores
  void* rounded_probabilities = nullptr;  // what the matrix products of a model in 16 bits read
  void* rounded_grads = nullptr;
  float* rows;        // [rows]: under kOnline 1 / sum of each row, backward the row sums of p dp
  float* row_values;  // [rows, head_dim]: under kOnline p v before the division
  float* grad_kv;     // [2, seq_len, head_dim]: of the keys, then of the values, summed over blocks
  float* group_kv;    // the same, summed over the heads of a group; only with groups
};

// Computes a head of a sequence, block by block of its queries.
class Head {
 public:
  // `piece` selects the part of the working memory that this object uses.
  Head(const HostMatmul& matmul, const AttentionShape& shape, DType dtype, const Tensor& scratch, int piece)
      : matmul_(matmul),
        shape_(shape),
        dtype_(dtype),
        scratch_(shape, dtype, static_cast<std::byte*>(scratch.data()) + piece * ScratchLayout(shape, dtype).nbytes) {}

  absl::Status Forward(const Tensor& qkv, const Tensor& out, const Tensor& statistics, int64_t batch, int64_t head) {
    for (int64_t first = 0; first < shape_.seq_len; first += kBlockRows) {
      const CausalBlock block = BlockAt(first);
      float* row_statistics = StatisticsAt(statistics, batch, head, first);
      FSDP_RETURN_IF_ERROR(Scores(qkv, batch, head, block));
      if (IsOnline()) {
        FSDP_RETURN_IF_ERROR(OnlineForward(qkv, out, row_statistics, batch, head, block));
        continue;
      }
      HostSoftmaxStatistics(block, scratch_.scores, row_statistics);
      HostProbabilities(block, scratch_.scores, row_statistics, scratch_.rounded_probabilities);
      FSDP_RETURN_IF_ERROR(matmul_.Run({.m = block.rows,
                                        .n = shape_.head_dim,
                                        .k = block.cols,
                                        .a = Probabilities(),
                                        .b = KeysAt(qkv, kV, batch, head, 0),
                                        .c = At(out, 0, batch, head, first),
                                        .lda = block.cols,
                                        .ldb = QkvStride(),
                                        .ldc = Width(),
                                        .dtype = dtype_,
                                        .c_dtype = dtype_}));
    }
    return absl::OkStatus();
  }

  // The gradients of all heads that share the key and value head number `kv_head`.
  absl::Status Backward(const AttentionBackwardOperands& operands, const Tensor& grad_qkv, int64_t batch,
                        int64_t kv_head) {
    const int64_t numel = 2 * shape_.seq_len * shape_.head_dim;
    // Hugging Face's eager attention repeats k and v for each head of a group, and autograd then adds the heads'
    // gradients, each rounded to the dtype. Fused attention sums over the whole group in float32 and rounds once.
    const bool rounds_heads = GroupSize() > 1 && shape_.rounding != AttentionRounding::kFused && !IsOnline();
    std::fill_n(scratch_.grad_kv, numel, 0.0f);
    if (rounds_heads) std::fill_n(scratch_.group_kv, numel, 0.0f);
    for (int64_t head = kv_head * GroupSize(); head < (kv_head + 1) * GroupSize(); ++head) {
      FSDP_RETURN_IF_ERROR(HeadBackward(operands, grad_qkv, batch, head));
      if (!rounds_heads) continue;
      HostAddRounded(dtype_, scratch_.grad_kv, scratch_.group_kv, numel);
      std::fill_n(scratch_.grad_kv, numel, 0.0f);
    }
    const float* sums = rounds_heads ? scratch_.group_kv : scratch_.grad_kv;
    FSDP_RETURN_IF_ERROR(StoreRows(sums, grad_qkv, kK, batch, kv_head));
    return StoreRows(sums + numel / 2, grad_qkv, kV, batch, kv_head);
  }

 private:
  enum Part : int64_t { kQ = 0, kK = 1, kV = 2 };  // of a row of qkv

  // grad_q, and this head's term of grad_kv.
  absl::Status HeadBackward(const AttentionBackwardOperands& operands, const Tensor& grad_qkv, int64_t batch,
                            int64_t head) {
    const auto& [grad_out, qkv, out, statistics] = operands;
    for (int64_t first = 0; first < shape_.seq_len; first += kBlockRows) {
      const CausalBlock block = BlockAt(first);
      FSDP_RETURN_IF_ERROR(Scores(qkv, batch, head, block));
      HostProbabilities(block, scratch_.scores, StatisticsAt(statistics, batch, head, first),
                        scratch_.rounded_probabilities);
      FSDP_RETURN_IF_ERROR(BackwardThroughValues(grad_out, qkv, batch, head, block));
      if (IsOnline()) {
        HostRowProducts({.a = At(grad_out, 0, batch, head, first),
                         .b = At(out, 0, batch, head, first),
                         .rows = block.rows,
                         .cols = shape_.head_dim,
                         .stride = Width(),
                         .dtype = dtype_},
                        scratch_.rows);
      }
      HostProbabilitiesBackward(block, scratch_.scores, scratch_.grads, IsOnline() ? scratch_.rows : nullptr,
                                GradScores());
      FSDP_RETURN_IF_ERROR(BackwardThroughScores(qkv, grad_qkv, batch, head, block));
    }
    return absl::OkStatus();
  }

  // From the block's scores: statistics, and rows of out.
  absl::Status OnlineForward(const Tensor& qkv, const Tensor& out, float* statistics, int64_t batch, int64_t head,
                             const CausalBlock& block) const {
    HostOnlineProbabilities(block, scratch_.scores, {statistics, scratch_.rows}, scratch_.rounded_probabilities);
    FSDP_RETURN_IF_ERROR(matmul_.Run({.m = block.rows,
                                      .n = shape_.head_dim,
                                      .k = block.cols,
                                      .a = Probabilities(),
                                      .b = KeysAt(qkv, kV, batch, head, 0),
                                      .c = scratch_.row_values,
                                      .lda = block.cols,
                                      .ldb = QkvStride(),
                                      .ldc = shape_.head_dim,
                                      .dtype = dtype_}));
    for (int64_t r = 0; r < block.rows; ++r) {
      float* row = scratch_.row_values + r * shape_.head_dim;
      for (int64_t d = 0; d < shape_.head_dim; ++d) row[d] *= scratch_.rows[r];
      FSDP_RETURN_IF_ERROR(
          Convert(DType::kFloat32, row, dtype_, At(out, 0, batch, head, block.first + r), shape_.head_dim));
    }
    return absl::OkStatus();
  }

  bool IsOnline() const { return shape_.rounding == AttentionRounding::kOnline; }
  int64_t GroupSize() const { return shape_.num_heads / shape_.kv_heads(); }
  int64_t Width() const { return shape_.q_width(); }
  int64_t QkvStride() const { return shape_.qkv_width(); }

  CausalBlock BlockAt(int64_t first) const {
    const int64_t rows = std::min(kBlockRows, shape_.seq_len - first);
    return {.first = first,
            .rows = rows,
            .cols = first + rows,
            .scale = shape_.scale,
            .dtype = dtype_,
            .rounding = shape_.rounding};
  }

  // Row `position` of one head's part in `t`, [B * T, (H + 2 * Hkv) * D] or, with part 0, [B * T, H * D]. `head` counts
  // heads of q for part 0, else heads of k and v.
  std::byte* At(const Tensor& t, int64_t part, int64_t batch, int64_t head, int64_t position) const {
    const int64_t row = batch * shape_.seq_len + position;
    const int64_t stride = t.numel() / (shape_.batch * shape_.seq_len);
    return static_cast<std::byte*>(t.data()) +
           (row * stride + FirstColumn(part) + head * shape_.head_dim) * SizeOf(t.dtype());
  }

  int64_t FirstColumn(int64_t part) const { return part == kQ ? 0 : Width() + (part - 1) * shape_.kv_width(); }

  // Row `position` of the keys (values) that query head `head` reads.
  std::byte* KeysAt(const Tensor& qkv, Part part, int64_t batch, int64_t head, int64_t position) const {
    return At(qkv, part, batch, head / GroupSize(), position);
  }

  float* StatisticsAt(const Tensor& statistics, int64_t batch, int64_t head, int64_t position) const {
    const int64_t row = (batch * shape_.num_heads + head) * shape_.seq_len + position;
    return statistics.data_as<float>() + row * (IsOnline() ? 1 : 2);
  }

  const void* Probabilities() const {
    if (IsRounded(dtype_)) return scratch_.rounded_probabilities;
    return scratch_.scores;
  }
  void* GradScores() const {
    if (IsRounded(dtype_)) return scratch_.rounded_grads;
    return scratch_.grads;
  }

  // scores = q k^T, in float32.
  absl::Status Scores(const Tensor& qkv, int64_t batch, int64_t head, const CausalBlock& block) const {
    return matmul_.Run({.m = block.rows,
                        .n = block.cols,
                        .k = shape_.head_dim,
                        .a = At(qkv, kQ, batch, head, block.first),
                        .b = KeysAt(qkv, kK, batch, head, 0),
                        .c = scratch_.scores,
                        .lda = QkvStride(),
                        .ldb = QkvStride(),
                        .ldc = block.cols,
                        .dtype = dtype_,
                        .transpose_b = true});
  }

  // grads = grad_out v^T, and the gradient of v += p^T grad_out.
  absl::Status BackwardThroughValues(const Tensor& grad_out, const Tensor& qkv, int64_t batch, int64_t head,
                                     const CausalBlock& block) const {
    const void* grad_rows = At(grad_out, 0, batch, head, block.first);
    FSDP_RETURN_IF_ERROR(matmul_.Run({.m = block.rows,
                                      .n = block.cols,
                                      .k = shape_.head_dim,
                                      .a = grad_rows,
                                      .b = KeysAt(qkv, kV, batch, head, 0),
                                      .c = scratch_.grads,
                                      .lda = Width(),
                                      .ldb = QkvStride(),
                                      .ldc = block.cols,
                                      .dtype = dtype_,
                                      .transpose_b = true}));
    return matmul_.Run({.m = block.cols,
                        .n = shape_.head_dim,
                        .k = block.rows,
                        .a = Probabilities(),
                        .b = grad_rows,
                        .c = scratch_.grad_kv + shape_.seq_len * shape_.head_dim,
                        .lda = block.cols,
                        .ldb = Width(),
                        .ldc = shape_.head_dim,
                        .dtype = dtype_,
                        .transpose_a = true,
                        .accumulate = true});
  }

  // grad_q = grad_scores k, and the gradient of k += grad_scores^T q.
  absl::Status BackwardThroughScores(const Tensor& qkv, const Tensor& grad_qkv, int64_t batch, int64_t head,
                                     const CausalBlock& block) const {
    FSDP_RETURN_IF_ERROR(matmul_.Run({.m = block.rows,
                                      .n = shape_.head_dim,
                                      .k = block.cols,
                                      .a = GradScores(),
                                      .b = KeysAt(qkv, kK, batch, head, 0),
                                      .c = At(grad_qkv, kQ, batch, head, block.first),
                                      .lda = block.cols,
                                      .ldb = QkvStride(),
                                      .ldc = QkvStride(),
                                      .dtype = dtype_,
                                      .c_dtype = dtype_}));
    return matmul_.Run({.m = block.cols,
                        .n = shape_.head_dim,
                        .k = block.rows,
                        .a = GradScores(),
                        .b = At(qkv, kQ, batch, head, block.first),
                        .c = scratch_.grad_kv,
                        .lda = block.cols,
                        .ldb = QkvStride(),
                        .ldc = shape_.head_dim,
                        .dtype = dtype_,
                        .transpose_a = true,
                        .accumulate = true});
  }

  absl::Status StoreRows(const float* rows, const Tensor& grad_qkv, Part part, int64_t batch, int64_t head) const {
    for (int64_t t = 0; t < shape_.seq_len; ++t) {
      FSDP_RETURN_IF_ERROR(Convert(DType::kFloat32, rows + t * shape_.head_dim, dtype_,
                                   At(grad_qkv, part, batch, head, t), shape_.head_dim));
    }
    return absl::OkStatus();
  }

  const HostMatmul& matmul_;
  const AttentionShape shape_;
  const DType dtype_;
  const Scratch scratch_;
};

}  // namespace

int64_t AttentionScratchBytes(const AttentionShape& shape, DType dtype, int threads) {
  return ScratchLayout(shape, dtype).nbytes * NumPieces(threads, shape.batch * shape.num_heads, /*grain=*/1);
}

absl::Status HostCausalAttention(const HostMatmul& matmul, const Tensor& qkv, const AttentionShape& shape,
                                 const Tensor& out, const Tensor& statistics, const Tensor& scratch, int threads) {
  return ParallelForEach(threads, shape.batch * shape.num_heads, [&](int piece, int64_t i) {
    Head head(matmul, shape, qkv.dtype(), scratch, piece);
    return head.Forward(qkv, out, statistics, i / shape.num_heads, i % shape.num_heads);
  });
}

absl::Status HostCausalAttentionBackward(const HostMatmul& matmul, const AttentionBackwardOperands& operands,
                                         const AttentionShape& shape, const Tensor& grad_qkv, const Tensor& scratch,
                                         int threads) {
  return ParallelForEach(threads, shape.batch * shape.kv_heads(), [&](int piece, int64_t i) {
    Head head(matmul, shape, grad_qkv.dtype(), scratch, piece);
    return head.Backward(operands, grad_qkv, i / shape.kv_heads(), i % shape.kv_heads());
  });
}

}  // namespace fsdp
