// SPDX-License-Identifier: Apache-2.0
//
// How a mean over ranks is split into a division before the sum and one after it, so that 16-bit sums neither overflow
// nor underflow. Formula: torch/distributed/algorithms/_comm_hooks/default_hooks.py, DefaultState.
#ifndef FSDP_FSDP_DIVIDE_FACTORS_H_
#define FSDP_FSDP_DIVIDE_FACTORS_H_

namespace fsdp {

struct DivideFactors {
  double pre = 1;   // before the reduction: a power of two near sqrt(world_size), so exact
  double post = 1;  // after it; pre * post == world_size
};

inline DivideFactors GradientDivideFactors(int world_size) {
  int pre = 1;
  while (world_size % pre == 0 && world_size / pre > pre) pre *= 2;
  return {static_cast<double>(pre), static_cast<double>(world_size) / pre};
}

}  // namespace fsdp

#endif  // FSDP_FSDP_DIVIDE_FACTORS_H_
