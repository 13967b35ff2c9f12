// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cudnn/cudnn_attention_graphs.h"

namespace fsdp {
namespace {

using cudnn::DataType;
using cudnn::PointwiseMode;
using cudnn::ReductionOperator;
using Tensor = CudnnGraph::Tensor;

// The layouts of one call; T tokens, D columns of a head.
struct Layouts {
  explicit Layouts(const CudnnAttentionSizes& s)
      : q{{s.batch, s.num_heads, s.seq_len, s.head_dim}, {s.seq_len * s.qkv_width, s.head_dim, s.qkv_width, 1}},
        kv{{s.batch, s.num_kv_heads, s.seq_len, s.head_dim}, q.strides},
        out{q.dims, {s.seq_len * s.out_width, s.head_dim, s.out_width, 1}},
        statistics{{s.batch, s.num_heads, s.seq_len, 1}, {s.all_heads * s.seq_len, s.seq_len, 1, 1}},
        scores(CudnnLayout::Packed({s.batch, s.num_heads, s.seq_len, s.seq_len})),
        rows(CudnnLayout::Packed({s.batch, s.num_heads, s.seq_len, 1})),
        head(CudnnLayout::Packed(q.dims)) {}

  CudnnLayout q, kv, out, statistics;  // in memory
  CudnnLayout scores, rows, head;      // [T, T], [T, 1] and [T, D] for each head
};

// A graph with the operations that both directions share.
class Writer {
 public:
  Writer(const CudnnAttentionSizes& sizes, CudnnGraph& graph) : sizes_(sizes), layouts_(sizes), graph_(graph) {}

  const Layouts& layouts() const { return layouts_; }

  Tensor Operand(int64_t uid, const CudnnLayout& layout) { return graph_.InMemory(uid, sizes_.dtype, layout); }
  Tensor Float(int64_t uid, const CudnnLayout& layout) { return graph_.InMemory(uid, DataType::kFloat, layout); }
  Tensor Temporary(const CudnnLayout& layout) { return graph_.Virtual(DataType::kFloat, layout); }

  // The scores of each query and key, scaled; minus infinity if the key comes after the query.
  Tensor MaskedScores(Tensor q, Tensor k_transposed, Tensor scale) {
    const CudnnLayout& scores = layouts_.scores;
    const Tensor products = graph_.Matmul(q, k_transposed, Temporary(scores));
    const Tensor scaled = graph_.Pointwise(PointwiseMode::kMul, {products, scale}, Temporary(scores));
    // The causal mask is computed from indices, so no T x T mask is in memory.
    const Tensor row = graph_.Index(2, scaled, graph_.Virtual(DataType::kInt32, scores));
    const Tensor column = graph_.Index(3, scaled, graph_.Virtual(DataType::kInt32, scores));
    const Tensor seen = graph_.GreaterOrEqual(row, column, graph_.Virtual(DataType::kBoolean, scores));
    return graph_.Pointwise(PointwiseMode::kBinarySelect, {scaled, graph_.ByValue(kUidMasked), seen},
                            Temporary(scores));
  }

  // grad = x^T y for each head, x [T, T]; for keys and values, which a group of heads shares, summed over the group.
  void GradOfKeys(Tensor x, Tensor y, Tensor grad) {
    const Tensor transposed = graph_.Reshape(x, graph_.Virtual(sizes_.dtype, layouts_.scores.Transposed()));
    if (sizes_.num_heads == sizes_.num_kv_heads) {
      graph_.Matmul(transposed, y, grad);
      return;
    }
    // Grouped queries: one result for each query head, which the reduction adds to the group's head of keys.
    const Tensor heads = graph_.Matmul(transposed, y, graph_.Virtual(sizes_.dtype, layouts_.head));
    graph_.Reduce(ReductionOperator::kAdd, heads, grad);
  }

 private:
  const CudnnAttentionSizes& sizes_;
  const Layouts layouts_;
  CudnnGraph& graph_;
};

}  // namespace

void WriteAttentionForward(const CudnnAttentionSizes& sizes, CudnnGraph& graph) {
  Writer write(sizes, graph);
  const Layouts& of = write.layouts();
  const Tensor q = write.Operand(kUidQ, of.q);
  const Tensor k_transposed = write.Operand(kUidK, of.kv.Transposed());
  const Tensor v = write.Operand(kUidV, of.kv);

  const Tensor scores = write.MaskedScores(q, k_transposed, graph.ByValue(kUidScale));
  const Tensor max = graph.Reduce(ReductionOperator::kMax, scores, write.Temporary(of.rows));
  const Tensor below = graph.Pointwise(PointwiseMode::kSub, {scores, max}, write.Temporary(of.scores));
  const Tensor exp = graph.Pointwise(PointwiseMode::kExp, {below}, write.Temporary(of.scores));
  const Tensor sum = graph.Reduce(ReductionOperator::kAdd, exp, write.Temporary(of.rows));
  const Tensor log = graph.Pointwise(PointwiseMode::kLog, {sum}, write.Temporary(of.rows));
  graph.Pointwise(PointwiseMode::kAdd, {max, log}, write.Float(kUidStatistics, of.statistics));
  // Rounded to the model's dtype, because the product reads that dtype.
  const Tensor p = graph.Pointwise(PointwiseMode::kDiv, {exp, sum}, graph.Virtual(sizes.dtype, of.scores));
  graph.Matmul(p, v, write.Operand(kUidOut, of.out));
}

void WriteAttentionBackward(const CudnnAttentionSizes& sizes, CudnnGraph& graph) {
  Writer write(sizes, graph);
  const Layouts& of = write.layouts();
  const Tensor q = write.Operand(kUidQ, of.q);
  const Tensor k_transposed = write.Operand(kUidK, of.kv.Transposed());
  const Tensor v_transposed = write.Operand(kUidV, of.kv.Transposed());
  const Tensor grad_out = write.Operand(kUidGradOut, of.out);
  const Tensor scale = graph.ByValue(kUidScale);

  // Row sums of grad_out * out. They are in memory, because the engine computes them in a separate kernel.
  const Tensor out = write.Operand(kUidOut, of.out);
  const Tensor products = graph.Pointwise(PointwiseMode::kMul, {grad_out, out}, write.Temporary(of.head));
  const Tensor sums = graph.Reduce(ReductionOperator::kAdd, products, write.Temporary(of.rows));
  const Tensor row_sums =
      graph.Pointwise(PointwiseMode::kMul, {sums, graph.ByValue(kUidOne)}, write.Float(kUidRowSums, of.rows));

  // The probabilities again, and the gradient of the values.
  const Tensor scores = write.MaskedScores(q, k_transposed, scale);
  const Tensor logs = graph.Pointwise(PointwiseMode::kSub, {scores, write.Float(kUidStatistics, of.statistics)},
                                      write.Temporary(of.scores));
  const Tensor p = graph.Pointwise(PointwiseMode::kExp, {logs}, write.Temporary(of.scores));
  write.GradOfKeys(p, grad_out, write.Operand(kUidGradV, of.kv));

  // The gradient of the scores, then the gradients of keys and queries.
  const Tensor grad_p = graph.Matmul(grad_out, v_transposed, write.Temporary(of.scores));
  const Tensor centred = graph.Pointwise(PointwiseMode::kSub, {grad_p, row_sums}, write.Temporary(of.scores));
  const Tensor unscaled = graph.Pointwise(PointwiseMode::kMul, {centred, p}, write.Temporary(of.scores));
  const Tensor grad_scores = graph.Pointwise(PointwiseMode::kMul, {unscaled, scale}, write.Temporary(of.scores));
  write.GradOfKeys(grad_scores, q, write.Operand(kUidGradK, of.kv));
  const Tensor k = graph.Reshape(k_transposed, graph.Virtual(sizes.dtype, of.kv));
  graph.Matmul(grad_scores, k, write.Operand(kUidGradQ, of.q));
}

}  // namespace fsdp
