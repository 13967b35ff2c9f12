// SPDX-License-Identifier: Apache-2.0
//
// TorchOptimizer: wraps an optimizer of torch::optim as an Optimizer, so that its state is in optimizer state dicts of
// all forms and in checkpoints, and can be restored on any number of ranks:
//
//   FSDP_ASSIGN_OR_RETURN(auto optimizer, TorchOptimizer::Create(*sharded, std::make_unique<torch::optim::RMSprop>(
//       sharded->LocalParameters(), torch::optim::RMSpropOptions(1e-3))));
//   FSDP_RETURN_IF_ERROR(optimizer->Step(sharded->stream()));
//   FSDP_RETURN_IF_ERROR(sharded->fsdp().AddOptimStateDict(*optimizer, state));
//
// Supports Adam, AdamW, SGD, RMSprop and Adagrad, which update each element independently, so that a slice is updated
// as a part of the whole would be. Refuses LBFGS, which takes sums over all parameters.
#ifndef FSDP_LIBTORCH_TORCH_OPTIMIZER_H_
#define FSDP_LIBTORCH_TORCH_OPTIMIZER_H_

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_optimizer_kind.h"
#include "fsdp/optim/optimizer.h"

namespace fsdp {

class TorchOptimizer final : public Optimizer {
 public:
  // `optimizer` has groups over tensors of module.LocalParameters() and has taken no step. Its state tensors become
  // views of this optimizer's state, so each exists once. `module` must outlive the result. kInvalidArgument for other
  // tensors, for a tensor in two groups, and for an optimizer of another class, naming the class.
  static absl::StatusOr<std::unique_ptr<TorchOptimizer>> Create(ShardedModule& module,
                                                                std::unique_ptr<torch::optim::Optimizer> optimizer);
  ~TorchOptimizer() override;

  // As Optimizer's, but waits for `stream`, and computes on the calling thread. kInternal has the text of LibTorch's
  // exception.
  absl::Status Step(Stream& stream) override;
  bool needs_step() const override { return kind_.has_step; }

  // For schedulers of learning rates. Do not add groups.
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }

 private:
  TorchOptimizer(std::shared_ptr<UnitFollower> follower, const std::vector<std::vector<ShardedParameter*>>& groups,
                 std::vector<std::string> state_names, const TorchOptimizerKind& kind,
                 std::unique_ptr<torch::optim::Optimizer> optimizer);
  std::vector<ParamGroupState> FormulaGroups() const override;
  absl::Status CheckFormula(size_t group, std::string_view name, double value) const override;
  void AssignFormula(size_t group, std::string_view name, double value) override;
  bool has_stochastic_rounding() const override { return false; }

  const TorchOptimizerKind::Options& OptionsOf(size_t group) const;
  absl::Status PrepareState(size_t index);
  absl::Status AdoptState(size_t index);
  void StepScaled(const std::vector<size_t>& indices);

  const std::shared_ptr<UnitFollower> follower_;
  const TorchOptimizerKind& kind_;
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<at::Tensor> tensors_;  // by parameter
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_TORCH_OPTIMIZER_H_
