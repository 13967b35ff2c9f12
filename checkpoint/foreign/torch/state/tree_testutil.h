// SPDX-License-Identifier: Apache-2.0
//
// TestTree: a tree of torch's values from JSON, in which a text "float32[4,3]" is a tensor of that dtype and shape, and
// "int64[]=7" one whose elements are 7. A dict or list without a tensor is one value, as in a file of torch.save.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TREE_TESTUTIL_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TREE_TESTUTIL_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

struct TestTree {
  explicit TestTree(const std::string& json);

  // StateOfTree of a copy of `root`, with a reader of the elements.
  absl::StatusOr<TorchState> State(TorchStateOptions options = {}) const;

  TorchNode root;
  std::vector<TorchLeafType> types;
  std::vector<std::string> elements;  // the bytes of one, by tensor
};

// True for the text that says only how the parts of a divided extra value fit together (extra_parts.h).
bool IsForm(const StateValue& value);

// "name float32[4,3]" of each tensor and "name = text" of each text of a state dict, without forms.
std::vector<std::string> Listing(const StateDict& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TREE_TESTUTIL_H_
