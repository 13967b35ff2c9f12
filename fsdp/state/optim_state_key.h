// SPDX-License-Identifier: Apache-2.0
//
// The keys of an optimizer's state dict: names of parameters, or PyTorch's ids, which count the parameters over the
// optimizer's groups. Ids are keys of decimal digits, and numbers in param_groups. All functions are local and pure.
#ifndef FSDP_FSDP_STATE_OPTIM_STATE_KEY_H_
#define FSDP_FSDP_STATE_OPTIM_STATE_KEY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

enum class OptimStateKeyType : uint8_t {
  kParamName,  // "transformer.wte.weight"
  kParamId,    // "0"
};

// Returns `state` with its optimizer state keyed by `key_type`, in the order of ids, and the params of each group
// sorted; all other entries are unchanged. Tensors are aliased. kInvalidArgument if names and ids are mixed, and for a
// parameter that `optimizer` does not have.
absl::StatusOr<StateDict> RekeyOptimStateDict(const StateDict& state, OptimStateKeyType key_type,
                                              const Optimizer& optimizer);

// kInvalidArgument if the optimizer state in `state` is keyed by ids; RekeyOptimStateDict converts it.
absl::Status CheckKeyedByName(const StateDict& state, const Optimizer& optimizer);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_STATE_KEY_H_
