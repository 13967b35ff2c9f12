// SPDX-License-Identifier: Apache-2.0
//
// ReadTorchOptimizer: an optimizer's state dict in any form that PyTorch uses, keyed by parameter names:
//
//   {"state": {"a.weight": {"step": ..., "exp_avg": ...}}, "param_groups": [{"lr": ..., "params": ["a.weight"]}]}
//   {"state": {0: {...}}, "param_groups": [{"lr": ..., "params": [0]}]}           ids, in the order of the groups
//   {"state.a.weight.exp_avg": ..., "param_groups.a.weight.lr": ...}              flattened, as DCP likes it
//   {"state": {0 or "layer._flat_param": {...}}, ...}                             FSDP1's flat form: see flat_state.h
//
// What an id stands for: param_groups[i]["param_names"] where torch saved it; else the ids of each group stand for
// parameters in the model's order, and the model's parameters are those groups merged. Sizes must agree, and the merge
// must be the only one that they allow; otherwise it is an error, never a guess. Pure.
#ifndef FSDP_CHECKPOINT_TORCH_STATE_TORCH_OPTIMIZER_H_
#define FSDP_CHECKPOINT_TORCH_STATE_TORCH_OPTIMIZER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/torch/state/flat_state.h"
#include "fsdp/checkpoint/torch/state/torch_tree.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// What reading a state dict may need beside it.
struct TorchStateOptions {
  TorchTensorReader read = nullptr;  // of tensors in param_groups, which are refused where it is null
  FlatStateOptions flat = {};
  bool model_only = false;  // the optimizer beside a model is left out
};

struct TorchOptimizer {
  struct Leaf {
    int tensor = -1;  // its index; -1 for a number, whose element is `bytes`
    DType dtype = DType::kFloat32;
    std::string bytes;
    Shape shape = {};
    int64_t offset = 0;  // of its first element in the tensor, when that is a flat one of FSDP1
  };
  std::vector<std::pair<StateKey, Leaf>> state;
  std::string param_groups;  // JSON, "params" by name; empty where there are none
};

// True for a node that has an optimizer's form.
bool IsTorchOptimizer(const TorchNode& node);

// `model` holds the model's tensors and aliases. kInvalidArgument says which parameter cannot be told, and why.
absl::StatusOr<TorchOptimizer> ReadTorchOptimizer(const TorchNode& node, const std::vector<TorchLeafType>& tensors,
                                                  const StateDict& model, const TorchStateOptions& options = {});

// `node`, or, where that is a value that is a dict, the same as a branch of values, which is put into `storage`.
const TorchNode& Expanded(const TorchNode& node, TorchNode& storage);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_STATE_TORCH_OPTIMIZER_H_
