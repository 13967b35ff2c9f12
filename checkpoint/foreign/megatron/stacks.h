// SPDX-License-Identifier: Apache-2.0
//
// StacksOf: the tensors of a model as Megatron-Core stacks them in a torch_dist checkpoint: the inverse of
// dist_state.h. The layers of a block are stacked if each has the same tensors, of the same shapes and dtypes, as
// Megatron-Core does it; otherwise each has keys of its own. The experts of a layer likewise. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_STACKS_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_STACKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Tensors of one shape and dtype, stacked along new first axes of the lengths `lengths`; no lengths for a single
// tensor.
struct Stack {
  std::string key;
  std::vector<int64_t> lengths;
  std::vector<const StateDict::Entry*> members;  // of model tensors; row-major in `lengths`
};

// The model tensors of `contents`, in their order, aliases left out; refers to `contents`. Experts' live names,
// "local_experts.3", become Megatron-Core's key for them. kInvalidArgument names a tensor whose name would be read as
// something else: a stack, an optimizer's state, an _extra_state.
absl::StatusOr<std::vector<Stack>> StacksOf(const StateDict& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_STACKS_H_
