// SPDX-License-Identifier: Apache-2.0
//
// OptimizerValue: a value in the state of a parameter that is no tensor, such as a step that is a number of Python. It
// is an extra value whose name says where it was, so that formats with dicts write it there again, with its type:
//
//   {"state": {"w": {"step": 7, "exp_avg": tensor}}}    extra/optim/state/w/step = 7, optim/state/w/exp_avg
//
// Programs and formats whose state is tensors take a number as one (ScalarOfState). Pure.
#ifndef FSDP_CHECKPOINT_SOURCE_OPTIMIZER_VALUE_H_
#define FSDP_CHECKPOINT_SOURCE_OPTIMIZER_VALUE_H_

#include <optional>
#include <string>
#include <string_view>

#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// A parameter and a name of its state (torch/state/state_path.h).
struct StateName {
  std::string_view fqn;
  std::string path;
};

// The key of the extra value that is state `path` of parameter `fqn`: "optim/state/FQN/PATH", PATH with "/" as "%2F".
// The inverse, for any key: the state that it is of, or nullopt. The result refers to `key`.
StateKey ExtraOfState(const std::string& fqn, const std::string& path);
std::optional<StateName> StateOfKey(const StateKey& key);

// A tensor without dimensions.
struct ScalarOfText {
  DType dtype = DType::kFloat32;
  std::string bytes;
};

// The tensor for state `path` whose text is a number or a truth value of JSON; nullopt for any other text. "step"
// becomes float32, the dtype in today's PyTorch, if float32 holds the number exactly.
std::optional<ScalarOfText> ScalarOfState(std::string_view path, const std::string& text);

// ScalarOfState of entry `fqn`, `path` of `state`, if that is a text.
std::optional<ScalarOfText> FindScalarOfState(const StateDict& state, const std::string& fqn, const std::string& path);

// `state`, of a checkpoint that lists all tensors before all texts, with the texts of a parameter's state next to its
// tensors: "step" before them, as in PyTorch's optimizers, and all others after them.
StateDict WithValuesInPlace(StateDict state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_OPTIMIZER_VALUE_H_
