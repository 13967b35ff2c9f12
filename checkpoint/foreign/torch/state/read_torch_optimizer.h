// SPDX-License-Identifier: Apache-2.0
//
// ReadTorchOptimizer: an optimizer's state dict in any form that PyTorch uses, keyed by parameter names:
//
//   {"state": {"a.weight": {"step": ..., "exp_avg": ...}}, "param_groups": [{"lr": ..., "params": ["a.weight"]}]}
//   {"state": {0: {...}}, "param_groups": [{"lr": ..., "params": [0]}]}           ids, in the order of the groups
//   {"state.a.weight.exp_avg": ..., "param_groups.a.weight.lr": ...}              flattened, as DCP may store it
//   {"state": {0 or "layer._flat_param": {...}}, ...}                             FSDP1's flat form: see flat_state.h
//
// Programs keep other values in the same dict (optimizer_form.h). An id is resolved by param_groups[i]["param_names"]
// if torch saved that, else by the model: the ids of each group represent parameters in the model's order, and the
// model's parameters are those groups merged (parameter_ids.h). The state must fit the shapes, and they must allow only
// one merge; otherwise the parameters are unknown rather than guessed. State may be nested (state_path.h). Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_READ_TORCH_OPTIMIZER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_READ_TORCH_OPTIMIZER_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/flat_state.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Inputs for reading a state dict that are not in its tree.
struct TorchStateOptions {
  TorchTensorReader read = nullptr;  // null: tensors in param_groups are refused, and no tensor is a counter
  FlatStateOptions flat = {};
  bool model_only = false;  // skip the optimizer of a file that also has a model, even one that cannot be read
  // Leave out objects of Python classes (torch_objects.h); otherwise they are an error.
  bool skip_objects = false;
  bool skip_weights = false;         // also tensors of the model in forms that are not read
  std::vector<TensorRole> map = {};  // TensorSourceOptions::map
};

// A tensor of the optimizer's state, or a value of Python.
struct TorchOptimizerState {
  TorchLeaf leaf = {};
  DType dtype = DType::kFloat32;
  Shape shape = {};
  // No tensor: the members above are unused. None is null; torch saves it for a buffer that is unused.
  std::optional<PythonJson> value = {};
};

// Receives one value after the other, in the order of the file. An error ends the reading, which returns it.
using TorchOptimizerSink = std::function<absl::Status(StateKey key, TorchOptimizerState state)>;

// The parameters of an optimizer among the model's.
struct ParameterScope {
  std::string prefix = {};               // of the names of the model's tensors that can be its parameters: "generator."
  std::vector<std::string> others = {};  // prefixes of names that cannot be
  // From an optimizer's name for a parameter to the model's, without `prefix`; empty: they are equal.
  std::function<std::string(const std::string& name)> rename = {};
};

// True for a node in one of the forms above.
bool IsTorchOptimizer(const TorchNode& node);

// `node`, in any of the forms, as {"state": ..., "param_groups": ...}. Other members are dropped. Errors of `read`.
absl::StatusOr<TorchNode> NestedOptimizer(TorchNode node, const TorchLeafTypes& tensors, const TorchTensorReader& read);

// Passes each value of the state of `node`, a NestedOptimizer, to `sink`, and returns param_groups as JSON, "params" by
// name; empty when the file does not have them. `tensors` is indexed by TorchNode::tensor(); `model` holds the model's
// tensors, in the model's order, and its aliases; `sink` may add to it. The node is consumed on the way, so that it is
// not in memory together with all of its results. kFailedPrecondition, with the reason, if its parameters cannot be
// identified: `node` is then unchanged. kInvalidArgument for FSDP1's flat form without a layout, and for a dict that no
// optimizer writes.
absl::StatusOr<std::string> ReadTorchOptimizer(TorchNode& node, const TorchLeafTypes& tensors, const StateDict& model,
                                               const TorchStateOptions& options, const ParameterScope& scope,
                                               const TorchOptimizerSink& sink);

// The model's names of the parameters, as ReadTorchOptimizer would identify them, or its error; kFailedPrecondition
// also for one that `model` does not have.
absl::StatusOr<std::vector<std::string>> ParametersOfOptimizer(const TorchNode& node, const TorchLeafTypes& tensors,
                                                               const StateDict& model, const TorchStateOptions& options,
                                                               const ParameterScope& scope);

// Returns `node` itself unless it is a leaf that holds a dict; then expands that dict into a branch of values, stored
// in `storage`, and returns `storage`.
const TorchNode& Expanded(const TorchNode& node, TorchNode& storage);

// The same in place: a leaf that holds a dict becomes a branch of values.
void Expand(TorchNode& node);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_READ_TORCH_OPTIMIZER_H_
