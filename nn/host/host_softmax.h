// SPDX-License-Identifier: Apache-2.0
//
// The elementwise part of causal attention on the host: rows of scores to probabilities, and back, in float32, rounded
// on the way as AttentionRounding specifies. A block is `rows` queries, of which the first is number `first` of its
// sequence, by `cols` keys, dense; query r of the block sees keys 0 to first + r. Elements beyond are written as 0 and
// never read. Runs immediately on the calling thread.
#ifndef FSDP_NN_HOST_HOST_SOFTMAX_H_
#define FSDP_NN_HOST_HOST_SOFTMAX_H_

#include <cstdint>

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct CausalBlock {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t cols = 0;               // at least first + rows
  float scale = 1;                // of the scores; positive
  DType dtype = DType::kFloat32;  // of the model
  AttentionRounding rounding = AttentionRounding::kFused;
};

// statistics[2 r], [2 r + 1] = maximum and 1 / sum of e^(scale * score - maximum) of row r.
void HostSoftmaxStatistics(const CausalBlock& block, const float* scores, float* statistics);

// For AttentionRounding::kOnline, each value by row: the logarithm of the sum of e^(scale * score), and 1 / sum of
// e^(scale * score - maximum).
struct OnlineSums {
  float* log_sum_exp;
  float* inverse_sum;
};

// Under kOnline forward: scores[r] = e^(scale * scores[r] - maximum), in place, and the same rounded to the model's
// dtype if `rounded` is not null. Writes both of `sums`.
void HostOnlineProbabilities(const CausalBlock& block, float* scores, const OnlineSums& sums, void* rounded);

// scores[r] = e^(scale * scores[r] - maximum) / sum, in place, and the same rounded to the model's dtype if `rounded`
// is not null. Under kOnline `statistics` has one value for each row, log_sum_exp.
void HostProbabilities(const CausalBlock& block, float* scores, const float* statistics, void* rounded);

// Gradient of the scores from the gradient of the probabilities: scale * p * (grad - sum(p * grad)), row by row, to
// `grad_scores` in the model's dtype; may be `grad` if that is float32. Uses `row_sums` as the sums if it is not null.
void HostProbabilitiesBackward(const CausalBlock& block, const float* probabilities, const float* grad,
                               const float* row_sums, void* grad_scores);

// Two matrices in memory of one dtype, whose rows are `stride` elements apart.
struct RowPairs {
  const void* a;
  const void* b;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  DType dtype = DType::kFloat32;
};

// sums[r] = sum of a[r] * b[r], in float64, rounded once.
void HostRowProducts(const RowPairs& pairs, float* sums);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_SOFTMAX_H_
