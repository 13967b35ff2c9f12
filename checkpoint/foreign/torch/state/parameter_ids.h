// SPDX-License-Identifier: Apache-2.0
//
// NamesOfParameterIds: the parameters that an optimizer's ids represent. torch.optim numbers parameters in the order of
// its groups, and does not save their names unless the program passed named parameters. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PARAMETER_IDS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PARAMETER_IDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/key_shapes.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The model's parameters in its order: its floating-point tensors except those that modules of torch and Hugging Face
// keep as buffers (running_mean, inv_freq, ...). A state dict does not distinguish the two, so this is a guess by name.
std::vector<FlatLayout::Parameter> ParametersOf(const StateDict& model);

// The names of parameters by id.
class ParameterNames {
 public:
  // Names that are keys of `model`, which must outlive this without moving its entries.
  explicit ParameterNames(const StateDict* model = nullptr) : model_(model) {}

  // A model's entry `entry`, or a name that is not a key. The last of equal ids counts.
  void Add(int64_t id, size_t entry) { rows_.push_back({id, static_cast<uint32_t>(entry)}); }
  void Add(int64_t id, std::string name) {
    rows_.push_back({id, static_cast<uint32_t>(names_.size())});
    names_.push_back(std::move(name));
  }
  // Call it once after the last Add and before the first Find.
  void Finish();

  // True when parameters are identified by name.
  bool empty() const { return rows_.empty(); }
  // Null for an id, in decimal, that has no name.
  const std::string* Find(std::string_view id) const;
  std::vector<int64_t> ids() const;

 private:
  struct Row {
    int64_t id = 0;
    uint32_t place = 0;  // in names_, if it is not empty, else in the entries of model_
  };

  const StateDict* model_;
  std::vector<Row> rows_;  // by id, after Finish
  std::vector<std::string> names_;
};

// Parameter names by id; empty when `groups` contain names. `shapes` is about the parameters' state, by id in decimal,
// for ids that have state, and is compared with the model's; `model` holds the parameters in their order, mixed with
// buffers and frozen parameters; only those count whose names `is_in_scope` accepts, null: all. Moves the texts of
// "param_names" out of the groups, if they have them. kInvalidArgument when an id has no certain name: the model is
// missing or has too few parameters, a state does not fit, or the model's tensors can be assigned to the groups in two
// ways. Memory and time are bounded.
absl::StatusOr<ParameterNames> NamesOfParameterIds(
    PythonJson& groups, KeyShapes& shapes, const StateDict& model,
    const std::function<bool(const std::string&)>& is_in_scope = nullptr);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PARAMETER_IDS_H_
