// SPDX-License-Identifier: Apache-2.0
//
// NamesOfParameterIds: the parameter that an optimizer's id stands for. torch.optim numbers parameters in the order of
// its groups, and does not save their names unless the program gave it named parameters. Pure.
#ifndef FSDP_CHECKPOINT_TORCH_STATE_PARAMETER_IDS_H_
#define FSDP_CHECKPOINT_TORCH_STATE_PARAMETER_IDS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/flat_layout.h"
#include "fsdp/checkpoint/torch/state/python_json.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The model's parameters in its order: its floating-point tensors without those that modules of torch and Hugging Face
// keep as buffers (running_mean, inv_freq, ...). A state dict does not distinguish the two, so a guess by name.
std::vector<FlatLayout::Parameter> ParametersOf(const StateDict& model);

// Parameter names by id in decimal; empty when `groups` go by name. `shapes` are those of the parameters' state, by id,
// for ids that have state; `model` holds the parameters in their order, with buffers and frozen parameters among them.
// kInvalidArgument when an id has no certain name: the model is missing or has too few parameters, shapes contradict
// (FSDP1's flat form), or the model's tensors can be given to the groups in two ways. Memory and time are bounded.
absl::StatusOr<std::map<std::string, std::string>> NamesOfParameterIds(const PythonJson& groups,
                                                                       const std::map<std::string, Shape>& shapes,
                                                                       const StateDict& model);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_STATE_PARAMETER_IDS_H_
