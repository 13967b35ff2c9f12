// SPDX-License-Identifier: Apache-2.0
//
// OptimizerStacksOf: the state of an optimizer as Megatron-Core's distributed optimizer saves it in the form
// fully_reshardable, which it loads at any number of ranks: for each key of the model, and stacked as it is,
//
//   optimizer.state.param.KEY       the float32 copy of a parameter, or the parameter itself without one
//   optimizer.state.exp_avg.KEY     and every other state of its shape
//
// The number of steps is in common.pt, once. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_OPTIMIZER_STACKS_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_OPTIMIZER_STACKS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/megatron/stacks.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Refers to the state dict.
struct OptimizerStacks {
  std::vector<Stack> stacks;                   // members may be of the model: then they are stored once
  std::vector<const StateDict::Entry*> steps;  // scalars

  bool empty() const { return stacks.empty(); }
};

// `model`: StacksOf(contents). kInvalidArgument names state that Megatron-Core has no place for: of no parameter, of
// another shape, or of only some layers of a stack.
absl::StatusOr<OptimizerStacks> OptimizerStacksOf(const StateDict& contents, const std::vector<Stack>& model);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_OPTIMIZER_STACKS_H_
