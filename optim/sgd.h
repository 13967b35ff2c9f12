// SPDX-License-Identifier: Apache-2.0
//
// SGD: stochastic gradient descent with momentum; torch.optim.SGD's formula in its order of operations, one fused pass
// over each slice. Weight decay is added to the gradient, as PyTorch does here.
#ifndef FSDP_OPTIM_SGD_H_
#define FSDP_OPTIM_SGD_H_

#include <string_view>
#include <vector>

#include "fsdp/optim/optimizer.h"

namespace fsdp {

// PyTorch's names and defaults.
struct SgdOptions {
  double lr = 1e-3;

  // The share of the buffer that a step keeps; 0: no buffer.
  double momentum = 0;

  // The share of the gradient that does not enter the buffer.
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // requires momentum > 0 and no dampening, as in PyTorch
};

// kInvalidArgument, naming the field, for a value that is out of range, as in torch.optim.SGD: numbers that are not
// finite, negative ones other than dampening, and nesterov without momentum or with dampening.
absl::Status Validate(const SgdOptions& options);

// With g the gradient of a parameter p, and b its momentum buffer:
//   g = g + weight_decay p;  b = momentum b + (1 - dampening) g, at first b = g
//   p = p - lr (nesterov ? g + momentum b : b); without momentum p = p - lr g
// State: "momentum_buffer" (b) if some group has momentum. Its steps cannot be captured in a graph.
class Sgd final : public Optimizer {
 public:
  // Parameters with their own options.
  struct Group {
    std::vector<ShardedParameter*> parameters;
    SgdOptions options;
  };

  // The caller owns `parameters`, which outlive the optimizer. The constructor decides if there are momentum buffers.
  Sgd(std::vector<ShardedParameter*> parameters, const SgdOptions& options);
  explicit Sgd(std::vector<Group> groups);

  // Adds a group of parameters, which have no state yet: PyTorch's add_param_group. Every rank adds the same.
  // kInvalidArgument for options that Validate refuses and for a parameter that is in two groups, naming it;
  // kFailedPrecondition for momentum if the other groups were made without it. An error adds nothing. Blocks.
  absl::Status AddParamGroup(Group group);

  // kInvalidArgument, naming the group, for options that Validate refuses; nothing is changed then.
  absl::Status Step(Stream& stream) override;
  bool needs_step() const override { return false; }

 private:
  std::vector<ParamGroupState> FormulaGroups() const override;
  absl::Status CheckFormula(size_t group, std::string_view name, double value) const override;
  void AssignFormula(size_t group, std::string_view name, double value) override;
  absl::Status CheckMomentum(double momentum) const;

  std::vector<Group> groups_;
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_SGD_H_
