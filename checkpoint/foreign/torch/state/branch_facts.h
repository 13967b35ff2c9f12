// SPDX-License-Identifier: Apache-2.0
//
// BranchFacts: the properties of a dict by which torch_layout.h tells models from other values. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_BRANCH_FACTS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_BRANCH_FACTS_H_

#include <string_view>
#include <vector>

#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

// Of a dict or list, and of all inside it; the tensors of an optimizer do not count. Refers to the tree.
struct BranchFacts {
  std::string_view key;  // in the branch above; "" of the root
  const TorchNode* node = nullptr;
  bool is_optimizer = false;
  bool is_dict = false;
  bool has_tensor = false;
  bool has_optimizer = false;      // is one, or has one inside
  bool has_usual_model = false;    // a dict of a usual name inside, outside of optimizers
  bool has_floats = false;         // floating-point tensors with dimensions, in it or its dicts and lists
  bool has_weights = false;        // such tensors in it or its dicts, with names as parameters have
  bool has_direct_floats = false;  // as direct members of this dict
  bool has_direct_weights = false;
  std::vector<BranchFacts> branches;  // those with tensors or optimizers
};

// The facts of `node`, whose key is `key`. Looks at each node once.
BranchFacts FactsOf(std::string_view key, const TorchNode& node, const TorchLeafTypes& tensors);

// True if the names of an optimizer and of a model have a word in common, or an abbreviation of it: "optimizer_D" and
// "netD", "opt_g" and "generator". Words that say only what it is do not count.
bool ShareAWord(std::string_view optimizer, std::string_view model);

// True for names without other words than these, such as "optimizer" and "optim_state_dict".
bool SaysOnlyWhatItIs(std::string_view name);

// "model", "state_dict", "module", "model_state_dict".
bool IsUsualModelName(std::string_view key);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_BRANCH_FACTS_H_
