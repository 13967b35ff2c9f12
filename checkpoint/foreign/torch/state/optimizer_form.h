// SPDX-License-Identifier: Apache-2.0
//
// OptimizerMembers: recognises an optimizer's dict by its structure, in the forms of read_torch_optimizer.h, and finds
// the members that belong to it: programs keep other values in the same dict. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_OPTIMIZER_FORM_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_OPTIMIZER_FORM_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

// The members of `node` that belong to an optimizer; empty if `node` is not one.
class OptimizerMembers {
 public:
  enum class Form : uint8_t {
    kNone,
    kNested,     // {"state": ..., "param_groups": ...}, or one of the two if it is recognised without the other
    kFlattened,  // {"state.a.weight.exp_avg": ..., "param_groups.a.weight.lr": ...}
  };

  explicit OptimizerMembers(const TorchNode& node);

  Form form() const { return form_; }
  bool Has(const std::string& name) const;
  // True if `node` has other members than these.
  bool have_others() const { return have_others_; }
  // The name of a parameter with state or options; empty if parameters have ids, or without parameters.
  const std::string& a_parameter() const { return a_parameter_; }

 private:
  void FindNested(const TorchNode& node);
  void FindFlattened(const TorchNode& node);

  Form form_ = Form::kNone;
  bool have_others_ = false;
  std::string a_parameter_;
  absl::flat_hash_set<std::string> parameters_;  // kFlattened: those with options or moments
};

// True for names under which optimizers keep a tensor that has the parameter's shape: "exp_avg", "momentum_buffer", ...
bool IsMomentName(std::string_view state);

// A flattened optimizer as {"state": ..., "param_groups": ...}; `read` reads tensors among the options. The flattened
// form does not keep groups, only the options of each parameter: parameters with equal options form a group.
absl::StatusOr<TorchNode> Unflattened(TorchNode flat, const TorchLeafTypes& tensors, const TorchTensorReader& read);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_OPTIMIZER_FORM_H_
