// SPDX-License-Identifier: Apache-2.0
//
// DividedValue: the text of an extra value that is divided into parts (extra_parts.h), and the names of the parts.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DIVIDED_VALUE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DIVIDED_VALUE_H_

#include <functional>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/foreign/torch/state/tree_place.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Passes each tensor in `node`, and each largest value without one, to `add`, with its name: `name` and the path to it,
// joined by dots. Returns the text that refers to them by the names that `add` returns. Errors of `add`. Appends to one
// text, because a tree of JSON with an object for each tensor of a large dict would take ten times as much.
absl::StatusOr<std::string> DivideValue(
    const std::string& name, const TorchNode& node,
    const std::function<absl::StatusOr<std::string>(const std::string& name, const TorchNode& part)>& add);

// The names of parts, which only the text of the whole refers to: two paths may have one name, "a.b" and "a", "b".
class PartNames {
 public:
  // Reserves the keys in `node`, at `place`, that are the names of other extra values.
  void Reserve(const TreePlace& place, const TorchNode& node);

  // `path`, or, if it is reserved or among `contents`, that path with a number; without NUL, which no name may have.
  std::string NameOf(const std::string& path, const StateDict& contents) const;

 private:
  absl::flat_hash_set<std::string> reserved_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DIVIDED_VALUE_H_
