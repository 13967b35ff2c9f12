// SPDX-License-Identifier: Apache-2.0
//
// The formulas, as close to their textbook form as a loop can be, in float64 and in the order of the indices: no
// tiling, no fused passes, no shared helpers with the kernels, so that it cannot share an error with a kernel. Slow on
// purpose: tests use sizes of some hundreds of elements.
//
// Each backward is derived by hand, as in the kernels, and is itself compared with central finite differences of its
// forward (reference_ops_test.cc). Rounding to bfloat16 is not modelled: tests compare within a tolerance of the dtype.
#include "fsdp/nn/ops/reference_ops.h"

#include <algorithm>
#include <cmath>

namespace fsdp {
namespace {

int64_t SizeOf(const Doubles& x) { return static_cast<int64_t>(x.size()); }

// Mean and 1 / standard deviation of one row, in two passes: a one-pass variance would cancel for a large mean.
struct Moments {
  Moments(const double* row, int64_t cols, double eps) {
    for (int64_t j = 0; j < cols; ++j) mean += row[j] / static_cast<double>(cols);
    // About the mean, and biased (1 / C), as in torch.nn.LayerNorm.
    double variance = 0;
    for (int64_t j = 0; j < cols; ++j) variance += (row[j] - mean) * (row[j] - mean) / static_cast<double>(cols);
    rstd = 1 / std::sqrt(variance + eps);
  }
  double mean = 0;
  double rstd = 0;
};

double InverseRms(const double* row, int64_t cols, double eps) {
  double mean_square = 0;
  for (int64_t j = 0; j < cols; ++j) mean_square += row[j] * row[j] / static_cast<double>(cols);
  return 1 / std::sqrt(mean_square + eps);
}

// Heads side by side, each rotated by `sign` times the angles whose cosines and sines `angles` has. Halves (a, b)
// become (a cos - b sin, b cos + a sin); sign = -1 is the inverse, and, a rotation being orthogonal, the transpose.
Doubles RotateHeads(const Doubles& heads, const double* angles, int64_t head_dim, double sign) {
  const int64_t half = head_dim / 2;
  Doubles out(heads.size());
  for (int64_t i = 0; i < SizeOf(heads); ++i) {
    const int64_t d = i % head_dim;
    const double cosine = angles[d % half], sine = sign * angles[half + d % half];
    out[i] = d < half ? heads[i] * cosine - heads[i + half] * sine : heads[i] * cosine + heads[i - half] * sine;
  }
  return out;
}

// Subtracts the maximum, so that no exponential overflows; the quotient does not change.
Doubles Softmax(const double* row, int64_t cols) {
  const double maximum = *std::max_element(row, row + cols);
  Doubles p(cols);
  double sum = 0;
  for (int64_t j = 0; j < cols; ++j) sum += p[j] = std::exp(row[j] - maximum);
  for (double& value : p) value /= sum;
  return p;
}

// Element d of part 0 (q), 1 (k) or 2 (v) of one position in qkv, as query head `head` sees it.
struct QkvIndex {
  const AttentionShape& shape;
  int64_t batch, head;
  // Several query heads map to one head of keys, so gradients of k and v add up over a group.
  int64_t operator()(int64_t part, int64_t t, int64_t d) const {
    const int64_t row = (batch * shape.seq_len + t) * shape.qkv_width();
    if (part == 0) return row + head * shape.head_dim + d;
    const int64_t kv_head = head / (shape.num_heads / shape.kv_heads());
    return row + shape.q_width() + (part - 1) * shape.kv_width() + kv_head * shape.head_dim + d;
  }
  int64_t Out(int64_t t, int64_t d) const {
    return ((batch * shape.seq_len + t) * shape.num_heads + head) * shape.head_dim + d;
  }
};

// Scores of query t with keys 0 to t, scaled.
Doubles ScoresRow(const Doubles& qkv, const AttentionShape& shape, const QkvIndex& at, int64_t t) {
  Doubles scores(t + 1, 0.0);
  for (int64_t s = 0; s <= t; ++s) {
    for (int64_t d = 0; d < shape.head_dim; ++d) scores[s] += qkv[at(0, t, d)] * qkv[at(1, s, d)];
    scores[s] *= static_cast<double>(shape.scale);
  }
  return scores;
}

// Probabilities of query t over keys 0 to t.
Doubles AttentionRow(const Doubles& qkv, const AttentionShape& shape, const QkvIndex& at, int64_t t) {
  return Softmax(ScoresRow(qkv, shape, at, t).data(), t + 1);
}

// Adds the gradients of a query's row. With p = softmax(s), ds_j = p_j (dp_j - sum_i p_i dp_i): the Jacobian of
// softmax, diag(p) - p p^T, times dp. Gradients are added, since every key and value is seen by many queries.
void AttentionRowBackward(const Doubles& grad_out, const Doubles& qkv, const AttentionShape& shape, const QkvIndex& at,
                          int64_t t, Doubles& grad_qkv) {
  const Doubles p = AttentionRow(qkv, shape, at, t);
  Doubles grad_p(t + 1, 0.0);
  double dot = 0;
  for (int64_t s = 0; s <= t; ++s) {
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      grad_p[s] += grad_out[at.Out(t, d)] * qkv[at(2, s, d)];
      grad_qkv[at(2, s, d)] += p[s] * grad_out[at.Out(t, d)];
    }
    dot += p[s] * grad_p[s];
  }
  for (int64_t s = 0; s <= t; ++s) {
    const double grad_score = p[s] * (grad_p[s] - dot) * static_cast<double>(shape.scale);
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      grad_qkv[at(0, t, d)] += grad_score * qkv[at(1, s, d)];
      grad_qkv[at(1, s, d)] += grad_score * qkv[at(0, t, d)];
    }
  }
}

}  // namespace

// One loop for each index, in the order of the definition.
Doubles ReferenceMatmul(const Doubles& a, const Doubles& b, const MatmulSizes& sizes, const MatmulOptions& options) {
  const auto [m, n, k] = sizes;
  Doubles c(m * n, 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        c[i * n + j] += a[options.transpose_a ? l * m + i : i * k + l] * b[options.transpose_b ? j * k + l : l * n + j];
      }
    }
  }
  return c;
}

Doubles ReferenceColumnSums(const Doubles& x, int64_t cols) {
  Doubles sums(cols, 0.0);
  for (int64_t i = 0; i < SizeOf(x); ++i) sums[i % cols] += x[i];
  return sums;
}

Doubles ReferenceActivate(ActivationKind kind, const Doubles& x) {
  Doubles out;
  for (const double v : x) {
    const double u = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
    if (kind == ActivationKind::kGeluTanh) out.push_back(0.5 * v * (1 + std::tanh(u)));
    if (kind == ActivationKind::kGeluErf) out.push_back(0.5 * v * (1 + std::erf(v / std::sqrt(2.0))));
    if (kind == ActivationKind::kRelu) out.push_back(std::max(v, 0.0));
    if (kind == ActivationKind::kSilu) out.push_back(v / (1 + std::exp(-v)));
  }
  return out;
}

Doubles ReferenceActivateBackward(ActivationKind kind, const Doubles& grad_out, const Doubles& x) {
  Doubles grad;
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double th = std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v));
    const double du = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * v * v);
    const double s = 1 / (1 + std::exp(-v));
    // th and du: tanh(u) and u' of the tanh form. s: the sigmoid, whose derivative is s (1 - s). For erf: cdf(v) + v
    // density(v).
    double slope = 0;
    if (kind == ActivationKind::kGeluTanh) slope = 0.5 * (1 + th) + 0.5 * v * (1 - th * th) * du;
    if (kind == ActivationKind::kGeluErf) {
      slope = 0.5 * (1 + std::erf(v / std::sqrt(2.0))) + v * std::exp(-v * v / 2) / std::sqrt(2 * M_PI);
    }
    if (kind == ActivationKind::kRelu) slope = v > 0 ? 1 : 0;
    if (kind == ActivationKind::kSilu) slope = s + v * s * (1 - s);
    grad.push_back(grad_out[i] * slope);
  }
  return grad;
}

Doubles ReferenceLayerNorm(const Doubles& x, const Doubles& weight, const Doubles& bias, double eps) {
  const int64_t cols = SizeOf(weight);
  Doubles out(x.size());
  for (int64_t r = 0; r < SizeOf(x); r += cols) {
    const Moments moments(&x[r], cols, eps);
    for (int64_t j = 0; j < cols; ++j) out[r + j] = (x[r + j] - moments.mean) * moments.rstd * weight[j] + bias[j];
  }
  return out;
}

LayerNormGrads ReferenceLayerNormBackward(const Doubles& grad_out, const Doubles& x, const Doubles& weight,
                                          double eps) {
  const int64_t cols = SizeOf(weight);
  LayerNormGrads grads = {Doubles(x.size()), Doubles(cols, 0.0), Doubles(cols, 0.0)};
  for (int64_t r = 0; r < SizeOf(x); r += cols) {
    const Moments moments(&x[r], cols, eps);
    // d h_j / d x_i = rstd (delta_ij - 1 / C - h_i h_j / C): the mean and the variance depend on every x_i.
    double mean_g = 0, mean_gh = 0;
    for (int64_t j = 0; j < cols; ++j) {
      const double h = (x[r + j] - moments.mean) * moments.rstd;
      mean_g += grad_out[r + j] * weight[j] / static_cast<double>(cols);
      mean_gh += grad_out[r + j] * weight[j] * h / static_cast<double>(cols);
      grads.weight[j] += grad_out[r + j] * h;
      grads.bias[j] += grad_out[r + j];
    }
    for (int64_t j = 0; j < cols; ++j) {
      const double h = (x[r + j] - moments.mean) * moments.rstd;
      grads.x[r + j] = moments.rstd * (grad_out[r + j] * weight[j] - mean_g - h * mean_gh);
    }
  }
  return grads;
}

Doubles ReferenceRmsNorm(const Doubles& x, const Doubles& weight, double eps) {
  const int64_t cols = SizeOf(weight);
  Doubles out(x.size());
  for (int64_t r = 0; r < SizeOf(x); r += cols) {
    const double rstd = InverseRms(&x[r], cols, eps);
    for (int64_t j = 0; j < cols; ++j) out[r + j] = x[r + j] * rstd * weight[j];
  }
  return out;
}

RmsNormGrads ReferenceRmsNormBackward(const Doubles& grad_out, const Doubles& x, const Doubles& weight, double eps) {
  const int64_t cols = SizeOf(weight);
  RmsNormGrads grads = {Doubles(x.size()), Doubles(cols, 0.0)};
  for (int64_t r = 0; r < SizeOf(x); r += cols) {
    const double rstd = InverseRms(&x[r], cols, eps);
    // d h_j / d x_i = rstd (delta_ij - rstd^2 x_i x_j / C): as above without the mean.
    double mean_gx = 0;
    for (int64_t j = 0; j < cols; ++j) {
      mean_gx += grad_out[r + j] * weight[j] * x[r + j] / static_cast<double>(cols);
      grads.weight[j] += grad_out[r + j] * x[r + j] * rstd;
    }
    for (int64_t j = 0; j < cols; ++j) {
      grads.x[r + j] = rstd * grad_out[r + j] * weight[j] - std::pow(rstd, 3) * x[r + j] * mean_gx;
    }
  }
  return grads;
}

Doubles ReferenceActivateGated(ActivationKind kind, const Doubles& gate, const Doubles& up) {
  Doubles out = ReferenceActivate(kind, gate);
  for (size_t i = 0; i < out.size(); ++i) out[i] *= up[i];
  return out;
}

// Product rule on f(gate) up.
GatedGrads ReferenceActivateGatedBackward(ActivationKind kind, const Doubles& grad_out, const Doubles& gate,
                                          const Doubles& up) {
  GatedGrads grads = {grad_out, ReferenceActivate(kind, gate)};
  for (size_t i = 0; i < up.size(); ++i) {
    grads.gate[i] *= up[i];
    grads.up[i] *= grad_out[i];  // held f(gate)
  }
  grads.gate = ReferenceActivateBackward(kind, grads.gate, gate);
  return grads;
}

Doubles ReferenceRotateQkv(const QkvParts& parts, const Doubles& rotation, const AttentionShape& shape) {
  Doubles qkv;
  for (int64_t row = 0; row < shape.batch * shape.seq_len; ++row) {
    const double* angles = &rotation[row % shape.seq_len * shape.head_dim];
    const auto append = [&](const Doubles& from, int64_t width, double sign) {
      const Doubles values(&from[row * width], &from[row * width] + width);
      const Doubles rotated = sign == 0 ? values : RotateHeads(values, angles, shape.head_dim, sign);
      qkv.insert(qkv.end(), rotated.begin(), rotated.end());
    };
    append(parts.q, shape.q_width(), 1);
    append(parts.k, shape.kv_width(), 1);
    append(parts.v, shape.kv_width(), 0);
  }
  return qkv;
}

// The reverse of the interleaving: takes q, k and v off each row in turn.
QkvParts ReferenceRotateQkvBackward(const Doubles& grad_qkv, const Doubles& rotation, const AttentionShape& shape) {
  QkvParts grads;
  const double* next = grad_qkv.data();
  for (int64_t row = 0; row < shape.batch * shape.seq_len; ++row) {
    const double* angles = &rotation[row % shape.seq_len * shape.head_dim];
    const auto take = [&](int64_t width, double sign, Doubles& to) {
      const Doubles values(next, next + width);
      const Doubles rotated = sign == 0 ? values : RotateHeads(values, angles, shape.head_dim, sign);
      to.insert(to.end(), rotated.begin(), rotated.end());
      next += width;
    };
    take(shape.q_width(), -1, grads.q);  // the transposed rotation is the one back
    take(shape.kv_width(), -1, grads.k);
    take(shape.kv_width(), 0, grads.v);
  }
  return grads;
}

Doubles ReferenceEmbedding(const std::vector<int32_t>& tokens, const Doubles& table, int64_t cols) {
  Doubles out;
  for (const int32_t token : tokens) out.insert(out.end(), &table[token * cols], &table[token * cols] + cols);
  return out;
}

Doubles ReferenceEmbeddingBackward(const std::vector<int32_t>& tokens, const Doubles& grad_out, int64_t rows,
                                   int64_t cols) {
  Doubles grad(rows * cols, 0.0);
  for (size_t n = 0; n < tokens.size(); ++n) {
    for (int64_t j = 0; j < cols; ++j) grad[tokens[n] * cols + j] += grad_out[n * cols + j];
  }
  return grad;
}

// For each sequence, head and query: one row of probabilities, and its product with the values.
Doubles ReferenceAttention(const Doubles& qkv, const AttentionShape& shape) {
  Doubles out(shape.batch * shape.seq_len * shape.q_width(), 0.0);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      const QkvIndex at = {shape, b, h};
      for (int64_t t = 0; t < shape.seq_len; ++t) {
        const Doubles p = AttentionRow(qkv, shape, at, t);
        for (int64_t s = 0; s <= t; ++s) {
          for (int64_t d = 0; d < shape.head_dim; ++d) out[at.Out(t, d)] += p[s] * qkv[at(2, s, d)];
        }
      }
    }
  }
  return out;
}

Doubles ReferenceAttentionLogSumExp(const Doubles& qkv, const AttentionShape& shape) {
  Doubles rows;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      for (int64_t t = 0; t < shape.seq_len; ++t) {
        const Doubles scores = ScoresRow(qkv, shape, QkvIndex{shape, b, h}, t);
        // As in Softmax: no exponential overflows.
        const double maximum = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (const double score : scores) sum += std::exp(score - maximum);
        rows.push_back(maximum + std::log(sum));
      }
    }
  }
  return rows;
}

Doubles ReferenceAttentionBackward(const Doubles& grad_out, const Doubles& qkv, const AttentionShape& shape) {
  Doubles grad(qkv.size(), 0.0);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      for (int64_t t = 0; t < shape.seq_len; ++t) {
        AttentionRowBackward(grad_out, qkv, shape, QkvIndex{shape, b, h}, t, grad);
      }
    }
  }
  return grad;
}

double ReferenceCrossEntropy(const Doubles& logits, const std::vector<int32_t>& targets) {
  const int64_t classes = SizeOf(logits) / static_cast<int64_t>(targets.size());
  double loss = 0;
  for (size_t r = 0; r < targets.size(); ++r) {
    loss -= std::log(Softmax(&logits[r * classes], classes)[targets[r]]) / static_cast<double>(targets.size());
  }
  return loss;
}

// d -log p[t] / d x[v] = p[v] - [v == t], over the mean of the rows.
Doubles ReferenceCrossEntropyBackward(const Doubles& logits, const std::vector<int32_t>& targets, double scale) {
  const int64_t classes = SizeOf(logits) / static_cast<int64_t>(targets.size());
  Doubles grad;
  for (size_t r = 0; r < targets.size(); ++r) {
    Doubles p = Softmax(&logits[r * classes], classes);
    p[targets[r]] -= 1;
    for (const double value : p) grad.push_back(value * scale / static_cast<double>(targets.size()));
  }
  return grad;
}

}  // namespace fsdp
