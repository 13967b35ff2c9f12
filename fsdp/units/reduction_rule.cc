// SPDX-License-Identifier: Apache-2.0
//
// Why two divisions: a sum of n gradients in 16 bits may overflow, and gradients divided by n first may underflow.
// Dividing by about sqrt(n) before and after keeps both errors small. Powers of two divide exactly.
#include "fsdp/fsdp/units/reduction_rule.h"

#include <cmath>

namespace fsdp {
namespace {

// As GradientDivideFactors, for a factor that may not be a whole number.
DivideFactors SplitFactor(double factor) {
  double pre = 1;
  while (std::fmod(factor, pre) == 0 && factor / pre > pre) pre *= 2;
  return {pre, factor / pre};
}

}  // namespace

ReductionRule Fsdp1ReductionRule(int data_parallel_size) {
  const DivideFactors factors = GradientDivideFactors(data_parallel_size);
  return {.pre = factors.pre, .post = factors.post};
}

ReductionRule Fsdp2ReductionRule(const Fsdp2Reduction& reduction) {
  const int ranks = reduction.shard_size * reduction.replicas;
  const double factor = reduction.divide_factor.value_or(ranks);
  // PyTorch treats every other dtype as one in which a sum may overflow.
  if (reduction.reduce_dtype != DType::kFloat32 && reduction.reduce_dtype != DType::kBFloat16) {
    const DivideFactors factors = SplitFactor(factor);
    return {.pre = factors.pre, .post = factors.post};
  }
  if (reduction.force_sum) return {.post = factor};
  if (reduction.divide_factor.has_value()) {
    if (factor == reduction.shard_size && reduction.shard_size > 1) return {.reduce_scatter = ReduceOp::kAvg};
    return {.pre = factor};  // a sum of gradients that were multiplied by 1 / factor
  }
  if (ranks == 1) return {};
  return {.reduce_scatter = ReduceOp::kAvg, .all_reduce = ReduceOp::kAvg};
}

}  // namespace fsdp
