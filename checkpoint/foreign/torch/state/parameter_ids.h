// SPDX-License-Identifier: Apache-2.0
//
// NamesOfParameterIds: the parameter that an optimizer's id stands for. torch.optim numbers parameters in the order of
// its groups, and does not save their names unless the program gave it named parameters. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PARAMETER_IDS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PARAMETER_IDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The model's parameters in its order: its floating-point tensors without those that modules of torch and Hugging Face
// keep as buffers (running_mean, inv_freq, ...). A state dict does not distinguish the two, so a guess by name.
std::vector<FlatLayout::Parameter> ParametersOf(const StateDict& model);

// The shapes of parameters by key, of those whose state tells it: a view of the key and the number of a tensor of that
// shape for each, since a checkpoint may have a million. Neither the texts nor the types are owned.
class KeyShapes {
 public:
  explicit KeyShapes(const TorchLeafTypes& types) : types_(types) {}

  void Reserve(size_t count) { rows_.reserve(count); }
  // `tensor`: nullopt for a parameter without dimensions. Of equal keys the first counts.
  void Add(std::string_view key, std::optional<int> tensor) { rows_.push_back({key, tensor.value_or(kScalar)}); }
  // Call it before Find, and Add nothing then.
  void Finish();

  bool empty() const { return rows_.empty(); }
  std::optional<Shape> Find(std::string_view key) const;
  void ForEach(const std::function<void(std::string_view key, const Shape& shape)>& use) const;

 private:
  static constexpr int kScalar = -1;
  struct Row {
    std::string_view key;
    int tensor = kScalar;
  };

  Shape ShapeOf(const Row& row) const { return row.tensor == kScalar ? Shape() : types_[row.tensor].shape; }

  const TorchLeafTypes& types_;
  std::vector<Row> rows_;  // by key, once it is finished
};

// The names of parameters by id.
class ParameterNames {
 public:
  // Names that are keys of `model`, which must outlive this and keep its entries where they are.
  explicit ParameterNames(const StateDict* model = nullptr) : model_(model) {}

  // A model's entry `entry`, or a name that is no key. Of equal ids the last counts.
  void Add(int64_t id, size_t entry) { rows_.push_back({id, static_cast<uint32_t>(entry)}); }
  void Add(int64_t id, std::string name) {
    rows_.push_back({id, static_cast<uint32_t>(names_.size())});
    names_.push_back(std::move(name));
  }
  // Call it before Find, and Add nothing then.
  void Finish();

  // True when parameters go by name.
  bool empty() const { return rows_.empty(); }
  // Null for an id, in decimal, that has no name.
  const std::string* Find(std::string_view id) const;
  std::vector<int64_t> ids() const;

 private:
  struct Row {
    int64_t id = 0;
    uint32_t place = 0;  // in names_, if there are any, else in the entries of model_
  };

  const StateDict* model_;
  std::vector<Row> rows_;  // by id, once it is finished
  std::vector<std::string> names_;
};

// Parameter names by id; empty when `groups` go by name. `shapes` are those of the parameters' state, by id in decimal,
// for ids that have state; `model` holds the parameters in their order, with buffers and frozen parameters among them.
// Takes the texts of "param_names" out of the groups, where they have them. kInvalidArgument when an id has no certain
// name: the model is missing or has too few parameters, shapes contradict (FSDP1's flat form), or the model's tensors
// can be given to the groups in two ways. Memory and time are bounded.
absl::StatusOr<ParameterNames> NamesOfParameterIds(PythonJson& groups, const KeyShapes& shapes, const StateDict& model);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PARAMETER_IDS_H_
