// SPDX-License-Identifier: Apache-2.0
//
// AdamW: decoupled weight decay, bias corrected; torch.optim.AdamW's formula, and torch.optim.Adam's, one fused pass
// over each slice. Its bits are not torch's: sums are rounded in other places (update_kernels.h), and
// torch_steps_test.cc bounds how far that carries. (Loshchilov and Hutter, "Decoupled Weight Decay Regularization",
// 2019.)
#ifndef FSDP_OPTIM_ADAMW_H_
#define FSDP_OPTIM_ADAMW_H_

#include <string_view>
#include <vector>

#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// PyTorch's names and defaults.
struct AdamWOptions {
  // The learning rate: about how far an element moves in a step.
  double lr = 1e-3;

  // PyTorch's betas: the shares of the old value in the running means of g and of g^2. In [0, 1).
  double beta1 = 0.9;
  double beta2 = 0.999;

  // Added to the root of v, outside of it.
  double eps = 1e-8;

  // The share of p, times lr, that a step takes away. 0: none.
  double weight_decay = 1e-2;

  // Divides by the root of the largest v so far, so that a step never grows because v falls: one more state. (Reddi,
  // Kale and Kumar, "On the Convergence of Adam and Beyond", 2018.) Fixed when a group is made; for parameters on
  // hosts.
  bool amsgrad = false;

  // False: Adam, whose decay is a part of the gradient, g + weight_decay p; torch.optim.Adam's default weight_decay
  // is 0. Fixed when a group is made; false is for parameters on hosts.
  bool decoupled_weight_decay = true;
};

// kInvalidArgument, naming the field, for a value that is out of range, as in torch.optim.AdamW: betas outside of [0,
// 1), others that are negative or not finite.
absl::Status Validate(const AdamWOptions& options);

// With g the gradient of a parameter p, and t the number of its steps:
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p = p - lr weight_decay p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
// States: "exp_avg" (m), "exp_avg_sq" (v), and in groups with amsgrad "max_exp_avg_sq". Its steps can be captured in a
// graph.
class AdamW final : public Optimizer {
 public:
  // Parameters with their own options.
  struct Group {
    std::vector<ShardedParameter*> parameters;
    AdamWOptions options;
  };

  // The caller owns `parameters`, which outlive the optimizer.
  AdamW(std::vector<ShardedParameter*> parameters, const AdamWOptions& options);
  explicit AdamW(std::vector<Group> groups);

  // Adds a group of parameters, which have no state yet: PyTorch's add_param_group. Every rank adds the same.
  // kInvalidArgument for options that Validate refuses and for a parameter that is in two groups, naming it;
  // kFailedPrecondition after CopyScalarsToDevice, since a captured step would leave the group out. An error adds
  // nothing. Blocks.
  absl::Status AddParamGroup(Group group);

  // Two groups, as is usual for transformers: weight decay only on parameters whose whole shape has two or more
  // dimensions.
  static std::vector<Group> DecayMatricesOnly(absl::Span<ShardedParameter* const> parameters,
                                              const AdamWOptions& options);

  // Both: kInvalidArgument, naming the group, for options that Validate refuses, and Step kUnimplemented for amsgrad or
  // Adam on a device; nothing is changed then.
  absl::Status Step(Stream& stream) override;
  absl::Status CopyScalarsToDevice(Stream& stream) override;

 private:
  std::vector<ParamGroupState> FormulaGroups() const override;
  absl::Status CheckFormula(size_t group, std::string_view name, double value) const override;
  void AssignFormula(size_t group, std::string_view name, double value) override;
  absl::Status CheckGroups() const;

  absl::Status CheckVariants(const std::vector<size_t>& indices) const;

  // The scalars of parameter `index` in live_scalars_.
  Tensor LiveScalars(size_t index) const;

  std::vector<Group> groups_;
  Buffer staged_scalars_;  // pinned; what live_scalars_ is copied from
  Tensor live_scalars_;    // float32 [parameters, 7]
  Event uploaded_;         // staged_scalars_ was copied
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_ADAMW_H_
