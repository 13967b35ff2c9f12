// SPDX-License-Identifier: Apache-2.0
//
// TreePlace: a branch or leaf of a saved dict on the walk through it: its role and its names. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TREE_PLACE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TREE_PLACE_H_

#include <string>

#include "fsdp/checkpoint/foreign/torch/state/torch_layout.h"

namespace fsdp {

struct TreePlace {
  using Role = TorchBranch::Role;

  const TorchBranch* branch = nullptr;  // null: nothing in it has a role of its own
  Role role = Role::kNone;
  const TorchBranch* model = nullptr;  // the one that it belongs to
  std::string path = {};               // from the root
  std::string name = {};               // from `model`
  int depth = 0;

  bool is_model() const { return role == Role::kModel; }

  // The place of the member `key`.
  TreePlace Inside(const std::string& key) const;

  // The same for a tensor.
  TreePlace OfTensor(const std::string& key) const;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TREE_PLACE_H_
