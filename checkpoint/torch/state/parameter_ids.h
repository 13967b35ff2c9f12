// SPDX-License-Identifier: Apache-2.0
//
// NamesOfParameterIds: which parameter an optimizer's id stands for. torch.optim numbers parameters in the order of its
// groups, and forgets their names unless it was given them. Pure.
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

// The model's parameters in its order: its floating-point tensors without those that modules keep as buffers.
std::vector<FlatLayout::Parameter> ParametersOf(const StateDict& model);

// By id in decimal; empty when `groups` go by name. `shapes` are those of the parameters' state, by id, where there is
// any; `model` holds the parameters in their order, and buffers and what was frozen among them. kInvalidArgument when
// ids have no names: the model is not there or has too few, sizes contradict (FSDP1's flat form), or there are two ways
// to give the model's tensors to the groups.
absl::StatusOr<std::map<std::string, std::string>> NamesOfParameterIds(const PythonJson& groups,
                                                                       const std::map<std::string, Shape>& shapes,
                                                                       const StateDict& model);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_STATE_PARAMETER_IDS_H_
