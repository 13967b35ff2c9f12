// SPDX-License-Identifier: Apache-2.0
//
// KeyShapes: what the state of parameters, by key, tells about their shapes. A moment (exp_avg) has the parameter's
// shape. Other states do not: Adafactor keeps a row and a column, 8-bit optimizers a number for each block, Shampoo
// square matrices. Such a state only rules out some shapes. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_KEY_SHAPES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_KEY_SHAPES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// Stores a view of each key and numbers of tensors, because a checkpoint may have a million. Does not own the texts or
// the types.
class KeyShapes {
 public:
  explicit KeyShapes(const TorchLeafTypes& types);

  void Reserve(size_t count) { rows_.reserve(count); }
  // The parameter has the shape of `tensor`; nullopt: it has no dimensions. The first of equal keys counts.
  void Add(std::string_view key, std::optional<int> tensor) { rows_.push_back({key, tensor.value_or(kScalar), 0}); }
  // The parameter's state `state` is `tensor`, of some shape.
  void AddState(std::string_view key, const std::string& state, int tensor);
  // Call it once after the last Add and before the functions below.
  void Finish();

  // States whose every tensor has the shape of one of `parameters`, and one of them two dimensions or more, have their
  // parameters' shapes from now on.
  void Compare(const std::vector<Shape>& parameters);

  bool empty() const { return rows_.empty(); }
  // True if no state has two dimensions.
  bool is_flat() const;
  // True if a parameter of this shape can have the state of `key`; also if `key` has no state.
  bool Fits(std::string_view key, const Shape& shape) const;
  // "state \"row_var\" of shape [4, 1]", the first of `key`; "no state".
  std::string Describe(std::string_view key) const;
  // The first shape of each key.
  void ForEach(const std::function<void(std::string_view key, const Shape& shape)>& use) const;

 private:
  static constexpr int kScalar = -1;
  struct Row {
    std::string_view key;
    int tensor = kScalar;
    uint32_t state = 0;  // in states_
  };
  using Rows = std::vector<Row>::const_iterator;

  Shape ShapeOf(const Row& row) const { return row.tensor == kScalar ? Shape() : types_[row.tensor].shape; }
  std::pair<Rows, Rows> RowsOf(std::string_view key) const;

  const TorchLeafTypes& types_;
  std::vector<Row> rows_;  // by key, after Finish
  struct State {
    std::string name;
    bool is_exact = false;  // its tensors have their parameters' shapes
  };
  std::vector<State> states_;                         // the first, without a name, is exact
  absl::flat_hash_map<std::string, uint32_t> index_;  // of states_, by name
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_KEY_SHAPES_H_
