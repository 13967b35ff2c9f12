// SPDX-License-Identifier: Apache-2.0
//
// UniversalPlan: which values of a state dict are in which file of a universal checkpoint of DeepSpeed:
//
//   zero/NAME/{fp32,STATE}.pt      a parameter in a group of the optimizer and its state; step.pt has its number of
//                                  steps. Without an optimizer every floating-point tensor is such a parameter
//   mp_rank_00_model_states.pt     all other tensors, which were not trained (frozen parameters, buffers), and the
//                                  program's own entries
//   zero/optimizer_state.pt        param_groups, the loss scale
//
// A state "fp32" (ZeRO 0) or "param" (Megatron-Core) is the float32 copy of a low-precision parameter: it becomes
// fp32.pt, and the parameter itself stays in the model file, as DeepSpeed has it. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_UNIVERSAL_PLAN_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_UNIVERSAL_PLAN_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// A folder zero/NAME.
struct UniversalParameter {
  std::string name;
  const StateDict::Entry* fp32 = nullptr;
  std::vector<std::pair<std::string, const StateDict::Entry*>> states;  // of the parameter's shape; without the step
  const StateDict::Entry* step = nullptr;                               // null without one
};

struct UniversalGroup {
  PythonJson options = PythonJson::object();  // lr, betas, ...; without the parameters
  std::vector<size_t> parameters;             // into UniversalPlan::parameters, in the order of param_groups
};

// Refers to the entries of the state dict.
struct UniversalPlan {
  std::vector<UniversalParameter> parameters;  // in the order of the model
  std::vector<UniversalGroup> groups;          // each parameter is in one
  std::vector<const StateDict::Entry*> module;

  // For the report of a conversion: what DeepSpeed does with it.
  std::vector<std::string> notes;
};

// The model, optimizer state and param_groups of `contents`. kInvalidArgument names a value that DeepSpeed has no place
// for: a name that is no folder's, state of another shape than its parameter, parameters with different state.
absl::StatusOr<UniversalPlan> PlanUniversal(const StateDict& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_UNIVERSAL_PLAN_H_
