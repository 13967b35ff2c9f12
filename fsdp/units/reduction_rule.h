// SPDX-License-Identifier: Apache-2.0
//
// How the mean of gradients over ranks is made of divisions and collectives, so that 16-bit sums neither overflow nor
// underflow. Formulas: torch/distributed/algorithms/_comm_hooks/default_hooks.py, DefaultState, and FSDP2's
// _get_gradient_divide_factors (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
#ifndef FSDP_FSDP_UNITS_REDUCTION_RULE_H_
#define FSDP_FSDP_UNITS_REDUCTION_RULE_H_

#include <optional>

#include "fsdp/collectives/group/reduce_op.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct DivideFactors {
  // The divisor before the reduction: a power of two near sqrt(world_size), so that the division is exact.
  double pre = 1;

  // The divisor after the reduction; pre * post == world_size.
  double post = 1;
};

// FSDP1's factors: 4 and 2 for 8 ranks, 2 and 1.5 for 3. Precondition: world_size > 0.

inline DivideFactors GradientDivideFactors(int world_size) {
  int pre = 1;
  while (world_size % pre == 0 && world_size / pre > pre) pre *= 2;
  return {static_cast<double>(pre), static_cast<double>(world_size) / pre};
}

// The steps of a reduction, in this order: divide by `pre`, reduce-scatter over the shard group, all-reduce over the
// replicate group, divide by `post`. A unit without one of the groups leaves out its collective.
struct ReductionRule {
  double pre = 1;
  ReduceOp reduce_scatter = ReduceOp::kSum;
  ReduceOp all_reduce = ReduceOp::kSum;
  double post = 1;
};

// FSDP1: sums, with both divisions, over all data-parallel ranks.
ReductionRule Fsdp1ReductionRule(int data_parallel_size);

// The inputs of FSDP2's rule.
struct Fsdp2Reduction {
  // The sizes of the unit's shard group and of its replicate group; 1 for a missing group.
  int shard_size = 1;
  int replicas = 1;

  DType reduce_dtype = DType::kFloat32;

  // FSDP2's set_gradient_divide_factor; default: the product of both sizes.
  std::optional<double> divide_factor = {};

  // FSDP2's set_force_sum_reduction_for_comms.
  bool force_sum = false;
};

// FSDP2: in float32 and bfloat16 the collectives average. With a divide_factor other than the shard size, gradients are
// divided by it before a sum; with force_sum, after it. Other dtypes sum with two divisions.
ReductionRule Fsdp2ReductionRule(const Fsdp2Reduction& reduction);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_REDUCTION_RULE_H_
