// SPDX-License-Identifier: Apache-2.0
//
// ReadTorchOptimizer: an optimizer's state dict in any form that PyTorch uses, keyed by parameter names:
//
//   {"state": {"a.weight": {"step": ..., "exp_avg": ...}}, "param_groups": [{"lr": ..., "params": ["a.weight"]}]}
//   {"state": {0: {...}}, "param_groups": [{"lr": ..., "params": [0]}]}           ids, in the order of the groups
//   {"state.a.weight.exp_avg": ..., "param_groups.a.weight.lr": ...}              flattened, as DCP may store it
//   {"state": {0 or "layer._flat_param": {...}}, ...}                             FSDP1's flat form: see flat_state.h
//
// An id is resolved by param_groups[i]["param_names"] if torch saved that, else by the model: the ids of each group
// represent parameters in the model's order, and the model's parameters are those groups merged (parameter_ids.h). The
// shapes must agree and must allow only one merge; otherwise reading fails rather than guess. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_OPTIMIZER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_OPTIMIZER_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/flat_state.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Inputs for reading a state dict that are not in its tree.
struct TorchStateOptions {
  TorchTensorReader read = nullptr;  // null: tensors in param_groups are refused
  FlatStateOptions flat = {};
  bool model_only = false;  // skip the optimizer of a file that also has a model, even one that cannot be read
  // Leave out objects of Python classes (torch_objects.h); otherwise they are an error.
  bool skip_objects = false;
};

// A tensor of the optimizer's state.
struct TorchOptimizerState {
  TorchLeaf leaf;
  DType dtype = DType::kFloat32;
  Shape shape;
};

// Receives one tensor after the other, in the order of the file. An error ends the reading, which returns it.
using TorchOptimizerSink = std::function<absl::Status(StateKey key, TorchOptimizerState state)>;

// True for a node in one of the forms above.
bool IsTorchOptimizer(const TorchNode& node);

// Passes each tensor of the state to `sink`, and returns param_groups as JSON, "params" by name; empty when the file
// does not have them. Precondition: IsTorchOptimizer(node). `tensors` is indexed by TorchNode::tensor(); `model` holds
// the model's tensors, in the model's order, and its aliases; `sink` may add to it. The node is consumed on the way, so
// that it is not in memory together with all of its results. kInvalidArgument names a parameter that cannot be
// identified, with the reason.
absl::StatusOr<std::string> ReadTorchOptimizer(TorchNode node, const TorchLeafTypes& tensors, const StateDict& model,
                                               const TorchStateOptions& options, const TorchOptimizerSink& sink);

// Returns `node` itself unless it is a leaf that holds a dict; then expands that dict into a branch of values, stored
// in `storage`, and returns `storage`.
const TorchNode& Expanded(const TorchNode& node, TorchNode& storage);

// The same in place: a leaf that holds a dict becomes a branch of values.
void Expand(TorchNode& node);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_OPTIMIZER_H_
