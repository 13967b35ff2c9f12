// SPDX-License-Identifier: Apache-2.0
//
// Lion: the sign of an interpolated momentum, with decoupled weight decay; one fused pass over each slice, for
// parameters on hosts. PyTorch lacks it: the formula, defaults and state names are those of lion-pytorch. (Chen et al.,
// "Symbolic Discovery of Optimization Algorithms", 2023.)
#ifndef FSDP_OPTIM_LION_H_
#define FSDP_OPTIM_LION_H_

#include <string_view>
#include <vector>

#include "fsdp/optim/optimizer.h"

namespace fsdp {

struct LionOptions {
  // How far every element moves in a step: 3 to 10 times less than AdamW's suits.
  double lr = 1e-4;

  // betas: the share of the momentum in the step, and in the next momentum. In [0, 1).
  double beta1 = 0.9;
  double beta2 = 0.99;

  // The share of p, times lr, that a step takes away. 0: none.
  double weight_decay = 0;
};

// kInvalidArgument, naming the field, for a value that is out of range: betas outside of [0, 1), others that are
// negative or not finite.
absl::Status Validate(const LionOptions& options);

// With g the gradient of a parameter p, and m its momentum:
//   p = p - lr weight_decay p - lr sign(beta1 m + (1 - beta1) g);  then m = beta2 m + (1 - beta2) g
// State: "exp_avg" (m). Its steps cannot be captured in a graph.
class Lion final : public Optimizer {
 public:
  // Parameters with their own options.
  struct Group {
    std::vector<ShardedParameter*> parameters;
    LionOptions options;
  };

  // The caller owns `parameters`, which outlive the optimizer.
  Lion(std::vector<ShardedParameter*> parameters, const LionOptions& options);
  explicit Lion(std::vector<Group> groups);

  // Adds a group of parameters, which have no state yet: PyTorch's add_param_group. Every rank adds the same.
  // kInvalidArgument for options that Validate refuses and for a parameter that is in two groups, naming it. An error
  // adds nothing. Blocks.
  absl::Status AddParamGroup(Group group);

  // kInvalidArgument, naming the group, for options that Validate refuses, and kUnimplemented for parameters on a
  // device; nothing is changed then.
  absl::Status Step(Stream& stream) override;
  bool needs_step() const override { return false; }

 private:
  std::vector<ParamGroupState> FormulaGroups() const override;
  absl::Status CheckFormula(size_t group, std::string_view name, double value) const override;
  void AssignFormula(size_t group, std::string_view name, double value) override;

  std::vector<Group> groups_;
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_LION_H_
