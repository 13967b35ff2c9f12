// SPDX-License-Identifier: Apache-2.0
//
// LayoutOf: which branches of a saved dict are a model, which an optimizer, and which are other values. No standard
// says so, and two magic words do not: programs save {"app": {"model": ..., "optim": ...}}, a model's tensors next to
// "optimizer" and "lr_scheduler", {"state_dict": ..., "optimizer_states": [...]}, a generator next to a discriminator.
// So structure decides, in this order:
//
//   1. what the caller says (TorchRoleOfBranch) is not looked at further;
//   2. an optimizer is a dict with "state" and "param_groups", or with names such as "state.a.weight.exp_avg" and
//      "param_groups.a.weight.lr", at any depth and also in a list. A dict that holds an optimizer is never a model;
//   3. a model is a dict of tensors with a usual name (branch_facts.h), at the least depth that has one, and a dict of
//      weights next to an optimizer with a like name: "discriminator" and "opt_d";
//   4. else, next to an optimizer, the tensors or dicts that look like weights: floating-point tensors whose names have
//      a dot, as names of parameters do, or end in "weight" or "bias", or that the optimizer knows; else any
//      floating-point tensors with dimensions;
//   5. else the whole dict, without dicts that hold no floating-point tensor, if it holds one or only tensors: a
//      generator's state next to a number is no model;
//   6. everything else is an extra value.
//
// The names of a model's tensors begin with the branch unless its name is a usual one: "net.0.weight" of {"net": ...},
// "0.weight" of {"model": ...}; of several models each keeps what distinguishes it: "generator.0.weight". Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_LAYOUT_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/source/source_layout.h"

namespace fsdp {

// A branch of the tree with a role of its own, or with such a branch inside it.
struct TorchBranch {
  enum class Role : uint8_t {
    kNone,      // its values are extra values, except members that have a role
    kModel,     // all tensors in it, except in members that have a role
    kTopModel,  // the tensors that are its direct members
    kExtra,
  };

  Role role = Role::kNone;
  bool is_optimizer = false;  // its OptimizerMembers are; its other members follow the role
  std::string prefix;         // of the names of a model's tensors: "", "generator."
  absl::flat_hash_map<std::string, std::unique_ptr<TorchBranch>> members;

  // The member `key`, or null.
  const TorchBranch* Find(const std::string& key) const;
};

struct TorchLayout {
  TorchBranch root;
  int models = 0;
  SourceLayout description;  // for people
};

// The layout of `root`, a dict, whose tensors have `tensors`. `roles` are the caller's. kInvalidArgument for a dict
// with a model, or an optimizer, under two usual names, and for one of `roles` that names nothing or has another form.
absl::StatusOr<TorchLayout> LayoutOf(const TorchNode& root, const TorchLeafTypes& tensors,
                                     const std::vector<TensorRole>& roles = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_LAYOUT_H_
