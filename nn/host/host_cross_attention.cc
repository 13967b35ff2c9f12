// SPDX-License-Identifier: Apache-2.0
//
// host_attention.cc without the causal mask, around which its vectorised loops are made, and with a mask of keys. For
// each sequence and head, in blocks of 128 queries:
//
//   forward     s = q k^T;  p = softmax(scale s) over the keys that are seen;  out = p v
//   backward    s and p again;  dp = dout v^T;  dv += p^T dout;  ds = scale p (dp - row sum of p dp)
//               dq = ds k;  dk += ds^T q
//
// dk and dv are sums over blocks and over the heads of a group, in float32 and in that order.
#include "fsdp/nn/host/host_cross_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/kernel_threads.h"

namespace fsdp {
namespace {

constexpr int64_t kBlockRows = 128;

// A block's scores and then probabilities, their gradients, both in the products' dtype as well, and one head's dk and
// dv.
struct Scratch {
  Scratch(const CrossAttentionShape& shape, DType dtype, std::byte* memory) : begin(memory) {
    const int64_t block = std::min(kBlockRows, shape.q_len) * shape.kv_len;
    const int64_t keys = shape.kv_len * shape.head_dim;
    probabilities = Take<float>(block);
    grads = Take<float>(block);
    rounded_probabilities = Take<std::byte>(block * SizeOf(dtype));
    rounded_grads = Take<std::byte>(block * SizeOf(dtype));
    grad_k = Take<float>(keys);
    grad_v = Take<float>(keys);
  }

  template <typename T>
  T* Take(int64_t count) {
    T* const taken = reinterpret_cast<T*>(begin + nbytes);
    // Whole cache lines, so that threads do not share one. With a null base this only counts.
    nbytes += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return taken;
  }

  std::byte* begin;
  int64_t nbytes = 0;
  float *probabilities, *grads, *grad_k, *grad_v;
  std::byte *rounded_probabilities, *rounded_grads;
};

class Head {
 public:
  // `piece` selects the part of the working memory that this object uses.
  Head(const HostMatmul& matmul, const CrossAttentionOperands& operands, const CrossAttentionShape& shape,
       const Tensor& scratch, int piece)
      : matmul_(matmul),
        operands_(operands),
        shape_(shape),
        dtype_(operands.q.dtype()),
        scratch_(shape, dtype_,
                 static_cast<std::byte*>(scratch.data()) + piece * Scratch(shape, dtype_, nullptr).nbytes) {}

  absl::Status Forward(const Tensor& out, const Tensor& statistics, int64_t batch, int64_t head) {
    for (int64_t first = 0; first < shape_.q_len; first += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, shape_.q_len - first);
      FSDP_RETURN_IF_ERROR(Scores(batch, head, first, rows));
      float* const kept = StatisticsAt(statistics, batch, head, first);
      for (int64_t r = 0; r < rows; ++r) {
        RowStatistics(MaskAt(batch), scratch_.probabilities + r * shape_.kv_len, kept + 2 * r);
      }
      FSDP_RETURN_IF_ERROR(Probabilities(batch, kept, rows));
      FSDP_RETURN_IF_ERROR(Product({.m = rows,
                                    .n = shape_.head_dim,
                                    .k = shape_.kv_len,
                                    .a = scratch_.rounded_probabilities,
                                    .b = KeyRow(operands_.v, batch, head),
                                    .c = QueryRow(out, batch, head, first),
                                    .lda = shape_.kv_len,
                                    .ldb = shape_.kv_width(),
                                    .ldc = shape_.q_width(),
                                    .c_dtype = dtype_}));
    }
    return absl::OkStatus();
  }

  // The gradients of all heads that share the key and value head number `kv_head`.
  absl::Status Backward(const Tensor& grad_out, const Tensor& statistics, const CrossAttentionGrads& grads,
                        int64_t batch, int64_t kv_head) {
    const int64_t keys = shape_.kv_len * shape_.head_dim;
    // Sums over all blocks and heads of the group; each block's dq is complete by itself.
    std::fill_n(scratch_.grad_k, keys, 0.0f);
    std::fill_n(scratch_.grad_v, keys, 0.0f);
    for (int64_t head = kv_head * shape_.group(); head < (kv_head + 1) * shape_.group(); ++head) {
      for (int64_t first = 0; first < shape_.q_len; first += kBlockRows) {
        FSDP_RETURN_IF_ERROR(BlockBackward(grad_out, statistics, grads.q, batch, head, first));
      }
    }
    FSDP_RETURN_IF_ERROR(StoreKeys(scratch_.grad_k, grads.k, batch, kv_head));
    return StoreKeys(scratch_.grad_v, grads.v, batch, kv_head);
  }

 private:
  absl::Status BlockBackward(const Tensor& grad_out, const Tensor& statistics, const Tensor& grad_q, int64_t batch,
                             int64_t head, int64_t first) {
    const int64_t rows = std::min(kBlockRows, shape_.q_len - first);
    const void* const grad_rows = QueryRow(grad_out, batch, head, first);
    FSDP_RETURN_IF_ERROR(Scores(batch, head, first, rows));
    FSDP_RETURN_IF_ERROR(Probabilities(batch, StatisticsAt(statistics, batch, head, first), rows));
    FSDP_RETURN_IF_ERROR(ProductWithKeys(grad_rows, operands_.v, batch, head, rows, scratch_.grads));
    FSDP_RETURN_IF_ERROR(AddToKeys(scratch_.rounded_probabilities, grad_rows, rows, scratch_.grad_v));
    for (int64_t r = 0; r < rows; ++r) {
      GradScores(scratch_.probabilities + r * shape_.kv_len, scratch_.grads + r * shape_.kv_len);
    }
    FSDP_RETURN_IF_ERROR(
        Convert(DType::kFloat32, scratch_.grads, dtype_, scratch_.rounded_grads, rows * shape_.kv_len));
    FSDP_RETURN_IF_ERROR(Product({.m = rows,
                                  .n = shape_.head_dim,
                                  .k = shape_.kv_len,
                                  .a = scratch_.rounded_grads,
                                  .b = KeyRow(operands_.k, batch, head),
                                  .c = QueryRow(grad_q, batch, head, first),
                                  .lda = shape_.kv_len,
                                  .ldb = shape_.kv_width(),
                                  .ldc = shape_.q_width(),
                                  .c_dtype = dtype_}));
    return AddToKeys(scratch_.rounded_grads, QueryRow(operands_.q, batch, head, first), rows, scratch_.grad_k);
  }

  absl::Status Product(Gemm gemm) const {
    gemm.dtype = dtype_;
    return matmul_.Run(gemm);
  }

  // c [rows, S], float32 = rows of queries by the keys (values) of a head.
  absl::Status ProductWithKeys(const void* rows_of_q, const Tensor& keys, int64_t batch, int64_t head, int64_t rows,
                               float* c) const {
    return Product({.m = rows,
                    .n = shape_.kv_len,
                    .k = shape_.head_dim,
                    .a = rows_of_q,
                    .b = KeyRow(keys, batch, head),
                    .c = c,
                    .lda = shape_.q_width(),
                    .ldb = shape_.kv_width(),
                    .ldc = shape_.kv_len,
                    .transpose_b = true});
  }

  absl::Status Scores(int64_t batch, int64_t head, int64_t first, int64_t rows) const {
    return ProductWithKeys(QueryRow(operands_.q, batch, head, first), operands_.k, batch, head, rows,
                           scratch_.probabilities);
  }

  // sum [S, D] += weights^T [S, rows] rows_of_q [rows, D].
  absl::Status AddToKeys(const void* weights, const void* rows_of_q, int64_t rows, float* sum) const {
    return Product({.m = shape_.kv_len,
                    .n = shape_.head_dim,
                    .k = rows,
                    .a = weights,
                    .b = rows_of_q,
                    .c = sum,
                    .lda = shape_.kv_len,
                    .ldb = shape_.q_width(),
                    .ldc = shape_.head_dim,
                    .transpose_a = true,
                    .accumulate = true});
  }

  // Maximum and 1 / sum of the scaled scores that are seen.
  void RowStatistics(const int32_t* mask, const float* scores, float* kept) const {
    float maximum = -std::numeric_limits<float>::infinity();
    for (int64_t s = 0; s < shape_.kv_len; ++s) {
      if (mask == nullptr || mask[s] != 0) maximum = std::max(maximum, shape_.scale * scores[s]);
    }
    double sum = 0;
    for (int64_t s = 0; s < shape_.kv_len; ++s) {
      if (mask == nullptr || mask[s] != 0) sum += std::exp(shape_.scale * scores[s] - maximum);
    }
    kept[0] = sum == 0 ? 0 : maximum;
    kept[1] = sum == 0 ? 0 : static_cast<float>(1 / sum);
  }

  // Scores to probabilities, in float32 in place and as the products read them.
  absl::Status Probabilities(int64_t batch, const float* kept, int64_t rows) const {
    const int32_t* const mask = MaskAt(batch);
    for (int64_t r = 0; r < rows; ++r) {
      // A row that sees no key keeps sum 0: its probabilities and gradients are 0.
      float* const p = scratch_.probabilities + r * shape_.kv_len;
      for (int64_t s = 0; s < shape_.kv_len; ++s) {
        const bool seen = kept[2 * r + 1] != 0 && (mask == nullptr || mask[s] != 0);
        p[s] = seen ? std::exp(shape_.scale * p[s] - kept[2 * r]) * kept[2 * r + 1] : 0;
      }
    }
    return Convert(DType::kFloat32, scratch_.probabilities, dtype_, scratch_.rounded_probabilities,
                   rows * shape_.kv_len);
  }

  // Replaces `grads`, the gradients of the probabilities, by the gradients of the scores.
  void GradScores(const float* p, float* grads) const {
    double sum = 0;
    // In float64, because a row may have thousands of terms.
    for (int64_t s = 0; s < shape_.kv_len; ++s) sum += static_cast<double>(p[s]) * grads[s];
    for (int64_t s = 0; s < shape_.kv_len; ++s) grads[s] = shape_.scale * p[s] * (grads[s] - static_cast<float>(sum));
  }

  absl::Status StoreKeys(const float* rows, const Tensor& to, int64_t batch, int64_t kv_head) const {
    for (int64_t s = 0; s < shape_.kv_len; ++s) {
      std::byte* const row = At(to, (batch * shape_.kv_len + s) * shape_.kv_width() + kv_head * shape_.head_dim);
      FSDP_RETURN_IF_ERROR(Convert(DType::kFloat32, rows + s * shape_.head_dim, dtype_, row, shape_.head_dim));
    }
    return absl::OkStatus();
  }

  static std::byte* At(const Tensor& t, int64_t element) {
    return static_cast<std::byte*>(t.data()) + element * SizeOf(t.dtype());
  }
  std::byte* QueryRow(const Tensor& t, int64_t batch, int64_t head, int64_t position) const {
    return At(t, (batch * shape_.q_len + position) * shape_.q_width() + head * shape_.head_dim);
  }
  // The first of the keys (values) that query head `head` reads.
  std::byte* KeyRow(const Tensor& t, int64_t batch, int64_t head) const {
    return At(t, batch * shape_.kv_len * shape_.kv_width() + head / shape_.group() * shape_.head_dim);
  }
  const int32_t* MaskAt(int64_t batch) const {
    return operands_.key_mask.defined() ? operands_.key_mask.data_as<int32_t>() + batch * shape_.kv_len : nullptr;
  }
  float* StatisticsAt(const Tensor& statistics, int64_t batch, int64_t head, int64_t position) const {
    return statistics.data_as<float>() + 2 * ((batch * shape_.num_heads + head) * shape_.q_len + position);
  }

  const HostMatmul& matmul_;
  const CrossAttentionOperands& operands_;
  const CrossAttentionShape& shape_;
  const DType dtype_;
  const Scratch scratch_;
};

}  // namespace

int64_t CrossAttentionScratchBytes(const CrossAttentionShape& shape, DType dtype, int threads) {
  return Scratch(shape, dtype, nullptr).nbytes * NumPieces(threads, shape.batch * shape.num_heads, /*grain=*/1);
}

absl::Status HostCrossAttention(const HostMatmul& matmul, const CrossAttentionOperands& operands,
                                const CrossAttentionShape& shape, const Tensor& out, const Tensor& statistics,
                                const Tensor& scratch, int threads) {
  return ParallelForEach(threads, shape.batch * shape.num_heads, [&](int piece, int64_t i) {
    Head head(matmul, operands, shape, scratch, piece);
    return head.Forward(out, statistics, i / shape.num_heads, i % shape.num_heads);
  });
}

absl::Status HostCrossAttentionBackward(const HostMatmul& matmul, const Tensor& grad_out,
                                        const CrossAttentionOperands& operands, const Tensor& statistics,
                                        const CrossAttentionShape& shape, const CrossAttentionGrads& grads,
                                        const Tensor& scratch, int threads) {
  // One thread per head of keys, not of queries: it owns that head's dk and dv, so their sums need no lock and have one
  // order.
  return ParallelForEach(threads, shape.batch * shape.kv_heads(), [&](int piece, int64_t i) {
    Head head(matmul, operands, shape, scratch, piece);
    return head.Backward(grad_out, statistics, grads, i / shape.kv_heads(), i % shape.kv_heads());
  });
}

}  // namespace fsdp
