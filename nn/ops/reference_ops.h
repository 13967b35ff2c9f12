// SPDX-License-Identifier: Apache-2.0
//
// For tests: every layer's forward and backward in float64 as plain loops, the reference for the kernels.
// reference_ops_test.cc checks each backward here against finite differences of its forward. Matrices are row-major
// vectors; sizes and layouts as in nn/ops/layer_ops.h. Operands of wrong sizes are undefined behaviour.
#ifndef FSDP_NN_OPS_REFERENCE_OPS_H_
#define FSDP_NN_OPS_REFERENCE_OPS_H_

#include <cstdint>
#include <vector>

#include "fsdp/nn/ops/kernel_options.h"

namespace fsdp {

using Doubles = std::vector<double>;

// c [m, n] is a product over k.
struct MatmulSizes {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// a b, with the operands in the layout that `options` gives.
Doubles ReferenceMatmul(const Doubles& a, const Doubles& b, const MatmulSizes& sizes, const MatmulOptions& options);

// Sums of the columns of x [x.size() / cols, cols].
Doubles ReferenceColumnSums(const Doubles& x, int64_t cols);

// Elementwise; backward returns grad_out * f'(x).
Doubles ReferenceActivate(ActivationKind kind, const Doubles& x);
Doubles ReferenceActivateBackward(ActivationKind kind, const Doubles& grad_out, const Doubles& x);

// Rows of x [x.size() / weight.size(), weight.size()], each to mean 0 and variance 1 (biased), then weight and bias.
Doubles ReferenceLayerNorm(const Doubles& x, const Doubles& weight, const Doubles& bias, double eps);

// The gradients of one call; weight's and bias's are summed over rows.
struct LayerNormGrads {
  Doubles x, weight, bias;
};
// The statistics are computed again from x.
LayerNormGrads ReferenceLayerNormBackward(const Doubles& grad_out, const Doubles& x, const Doubles& weight, double eps);

// The same as ReferenceLayerNorm, without mean and bias.
Doubles ReferenceRmsNorm(const Doubles& x, const Doubles& weight, double eps);

struct RmsNormGrads {
  Doubles x, weight;
};
RmsNormGrads ReferenceRmsNormBackward(const Doubles& grad_out, const Doubles& x, const Doubles& weight, double eps);

// f(gate) * up.
Doubles ReferenceActivateGated(ActivationKind kind, const Doubles& gate, const Doubles& up);

struct GatedGrads {
  Doubles gate, up;
};
// gate: grad_out * up * f'(gate). up: grad_out * f(gate).
GatedGrads ReferenceActivateGatedBackward(ActivationKind kind, const Doubles& grad_out, const Doubles& gate,
                                          const Doubles& up);

// q, k and v of each token side by side in a row, q and k rotated by `rotation` [T, D].
struct QkvParts {
  Doubles q, k, v;
};
Doubles ReferenceRotateQkv(const QkvParts& parts, const Doubles& rotation, const AttentionShape& shape);
QkvParts ReferenceRotateQkvBackward(const Doubles& grad_qkv, const Doubles& rotation, const AttentionShape& shape);

// Row tokens[n] of the table, of `cols` columns, for each n. Tokens are in range.
Doubles ReferenceEmbedding(const std::vector<int32_t>& tokens, const Doubles& table, int64_t cols);
// The gradient of the table, of `rows` rows.
Doubles ReferenceEmbeddingBackward(const std::vector<int32_t>& tokens, const Doubles& grad_out, int64_t rows,
                                   int64_t cols);

// qkv as in LayerOps::CausalAttention. Backward computes the probabilities again, and so needs no statistics.
Doubles ReferenceAttention(const Doubles& qkv, const AttentionShape& shape);
// The logarithm of the sum of e^score of each row [B, H, T]: the statistics of AttentionRounding::kOnline.
Doubles ReferenceAttentionLogSumExp(const Doubles& qkv, const AttentionShape& shape);
Doubles ReferenceAttentionBackward(const Doubles& grad_out, const Doubles& qkv, const AttentionShape& shape);

// The mean over rows; backward is `scale` times its gradient.
double ReferenceCrossEntropy(const Doubles& logits, const std::vector<int32_t>& targets);
Doubles ReferenceCrossEntropyBackward(const Doubles& logits, const std::vector<int32_t>& targets, double scale);

}  // namespace fsdp

#endif  // FSDP_NN_OPS_REFERENCE_OPS_H_
