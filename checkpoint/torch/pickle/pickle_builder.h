// SPDX-License-Identifier: Apache-2.0
//
// PickleBuilder: makes the values of a Pickle, and keeps count of the memory that they take. Values go by id. It also
// knows which calls make one of Python's own containers (OrderedDict, Counter, set, bytearray), which are values
// themselves.
#ifndef FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_BUILDER_H_
#define FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/torch/pickle/pickle.h"
#include "fsdp/checkpoint/torch/pickle/pickle_input.h"

namespace fsdp {

class PickleBuilder {
 public:
  // The place of each value is where `input` is; both must outlive the builder.
  PickleBuilder(Pickle& pickle, const PickleInput& input) : pickle_(pickle), input_(input) {}

  uint32_t None() { return Add(PickleKind::kNone); }
  uint32_t Bool(bool value);
  uint32_t Integer(int64_t value);
  uint32_t Float(double value);

  // `text` is a part of the input.
  uint32_t Text(PickleKind kind, std::string_view text);

  // A value of the kinds that hold others.
  uint32_t Items(PickleKind kind, std::vector<uint32_t> items);

  uint32_t Persistent(uint32_t name);

  void Append(uint32_t container, uint32_t item);

  // What callee(*arguments) makes where that is a container; nothing for another call.
  absl::StatusOr<std::optional<uint32_t>> Container(uint32_t callee, uint32_t arguments);

  PickleKind KindOf(uint32_t id) const { return pickle_.nodes_[id].kind; }
  const std::vector<uint32_t>& ItemsOf(uint32_t id) const { return pickle_.items(id); }
  PickleValue Value(uint32_t id) const { return {&pickle_, id}; }

  // Bytes that all values take.
  size_t memory() const { return pickle_.nodes_.size() * sizeof(Pickle::Node) + item_bytes_; }

 private:
  uint32_t Add(PickleKind kind);
  uint32_t Empty(bool is_dict, bool is_set);
  absl::StatusOr<std::optional<uint32_t>> Bytes(PickleValue callee, PickleValue arguments);
  absl::StatusOr<uint32_t> DictOfPairs(PickleValue pairs);

  Pickle& pickle_;
  const PickleInput& input_;
  size_t item_bytes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_BUILDER_H_
