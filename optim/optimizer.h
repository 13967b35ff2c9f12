// SPDX-License-Identifier: Apache-2.0
//
// Optimizer: updates parameters from gradients, slice by slice; the base of AdamW and SGD. Each state has the elements
// of its parameter's slice, so optimizer state is sharded by the same intervals as parameters, and its dtype: float32,
// or on hosts bfloat16 or float16, of which a step computes in float32 and rounds the results once, as PyTorch's fused
// optimizers do. One thread.
#ifndef FSDP_OPTIM_OPTIMIZER_H_
#define FSDP_OPTIM_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/optim/parameter_state.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class StateBuffers;
class UpdateOps;
struct TensorExtras;

// Hyperparameters by PyTorch's names ("lr", "weight_decay", "eps", "betas" as beta1 and beta2, ...) for one group.
struct ParamGroupState {
  std::vector<std::string> params;                     // fqns
  std::vector<std::pair<std::string, double>> values;  // name -> value, PyTorch's names

  // Values that state dicts leave out, because they are the defaults. A saved group may have them, and no others.
  std::vector<std::pair<std::string, double>> implied = {};
};

class Optimizer {
 public:
  Optimizer(Optimizer&&);
  virtual ~Optimizer();

  // One update of every parameter that has_grad, stream-ordered after the work that `stream` has so far. The first call
  // allocates the state. kInvalidArgument names a parameter whose dtype is not supported.
  virtual absl::Status Step(Stream& stream) = 0;

  // The next Step multiplies gradients by `factor`, one float32 on the parameters' device, which is read in stream
  // order, and rounds them to their dtype. The result has the bits of TensorOps::ScaleBy before the Step, for any
  // factor, without an extra pass; the gradients in memory do not change. Like grad_scale of PyTorch's fused
  // optimizers.
  void set_grad_factor(Tensor factor) { grad_factor_ = std::move(factor); }
  bool has_grad_factor() const { return grad_factor_.defined(); }

  // The next Step reads `found_inf`, one float32 on the parameters' device, in stream order: unless it is 0, parameters
  // and state do not change. The host counts such a step like any other, until it learns of it and calls TakeBackStep.
  // Like found_inf of PyTorch's fused optimizers.
  void set_found_inf(Tensor found_inf) { found_inf_ = std::move(found_inf); }

  // Set: a Step rounds what it writes in bfloat16, parameters and states, at random (stochastic_rounding.h) and not to
  // the nearest; other dtypes are not concerned. State dicts have it with the seed, which is from 0 to 2^53, and a
  // training that is resumed has the same bits. As bf16_stochastic_round of torchao's optimizers, which round states to
  // the nearest. kInvalidArgument for another seed, kUnimplemented for an optimizer of LibTorch.
  absl::Status set_bf16_stochastic_round(std::optional<uint64_t> seed);
  const std::optional<uint64_t>& bf16_stochastic_round() const { return rounding_seed_; }

  // Undoes the counts of the last Step, or replay of one, that its found_inf skipped: its parameters have as many steps
  // as before, and no state if they had no state before.
  void TakeBackStep();

  // For a Step that is captured (tensor/work_graph.h): copies the scalars of the next step, which depend on learning
  // rate and step count, to device memory, on `stream`, for the captured kernels to read. Call before the step is
  // captured and before each replay. kUnimplemented for an optimizer whose steps cannot be captured.
  virtual absl::Status CopyScalarsToDevice(Stream& stream);

  // Counts a replay of the Step that was captured last. The capture itself counted the first replay.
  void CountReplay();

  // Clears has_grad of all parameters. Their gradient memory stays and is overwritten by the next backward.
  void ZeroGrad();

  // The name of this optimizer in state dicts of several optimizers, which they use as it is; empty, the default: none.
  void set_name(std::string name) { name_ = std::move(name); }
  const std::string& name() const { return name_; }

  // All parameters, in group order. The caller owns them; they outlive the optimizer, and none is null.
  absl::Span<ShardedParameter* const> parameters() const { return parameters_; }

  // Names of the states, e.g. {"exp_avg", "exp_avg_sq"}, and those of them that parameters()[index] has, which may be
  // fewer.
  const std::vector<std::string>& state_names() const;
  std::vector<std::string> StateNamesOf(size_t index) const;

  // State `name` of parameters()[index]: 1-D, interval.size() elements, or all of a factor (FactorShape), the live
  // memory. Undefined before the parameter's first step, unless `create`, which makes it (zero).
  absl::StatusOr<Tensor> State(size_t index, std::string_view name, bool create = false);

  // True if PyTorch's optimizer of this kind has a scalar state "step". Without one, a state dict need not have it:
  // then only the other states are needed, and a parameter that has them counts as having taken one step.
  virtual bool needs_step() const { return true; }

  // Steps that parameters()[index] has taken: PyTorch's scalar state "step".
  int64_t step_count(size_t index) const { return steps_[index]; }
  void set_step_count(size_t index, int64_t steps) { steps_[index] = steps; }

  // The groups with their current hyperparameters; with stochastic rounding also "bf16_stochastic_round", 1, and
  // "rounding_seed", which are the same in all groups.
  std::vector<ParamGroupState> ParamGroups() const;

  // OK if hyperparameter `name` ("lr") of ParamGroups()[group] may be `value`. kInvalidArgument, naming the group, for
  // an unknown group or name, and for a value out of its range. Changes nothing.
  absl::Status CheckHyperparameter(size_t group, std::string_view name, double value) const;

  // Sets it, unless CheckHyperparameter refuses it. Counts from the next step on.
  absl::Status SetGroupHyperparameter(size_t group, std::string_view name, double value);

  // SetGroupHyperparameter for every group. An error of any group changes none.
  absl::Status SetHyperparameter(std::string_view name, double value);

 protected:
  // The three of the formula's own hyperparameters, without rounding. Assign sets a value that Check allows.
  virtual std::vector<ParamGroupState> FormulaGroups() const = 0;
  virtual absl::Status CheckFormula(size_t group, std::string_view name, double value) const = 0;
  virtual void AssignFormula(size_t group, std::string_view name, double value) = 0;

  // False if Step cannot round at random.
  virtual bool has_stochastic_rounding() const { return true; }

  // kInvalidArgument, with `optimizer` ("AdamW") in front, for an unknown group.
  absl::Status CheckGroup(std::string_view optimizer, size_t group) const;

  // Adds a group of parameters, which get the states that `rule` gives them at their first step. kInvalidArgument names
  // a parameter that is in a group already, or twice in this one; errors of a device's allocator. An error adds
  // nothing. Blocks.
  absl::Status AddParameters(absl::Span<ShardedParameter* const> parameters, const StateRule& rule = {});

  // `groups` are the parameters by group, `state_names` the names of the states. All parameters have all of them, but
  // for those that a constructor leaves out by LimitStates.
  Optimizer(const std::vector<std::vector<ShardedParameter*>>& groups, std::vector<std::string> state_names);

  // Gives the parameters of a group only the states for which `rule` is true.
  void LimitStates(size_t group, const StateRule& rule);

  // kUnimplemented unless these parameters are in host memory, where only `what` ("amsgrad") has kernels: names the
  // first that is not, and the alternatives.
  absl::Status CheckOnHost(std::string_view what, const std::vector<size_t>& indices) const;

  // The parameters that a step updates, by index: those that have a gradient. kInvalidArgument, naming the parameter,
  // unless data is float32 and grad float32, bfloat16 or float16, or both are bfloat16 or float16, and both are of the
  // interval's size.
  absl::StatusOr<std::vector<size_t>> ParametersToUpdate();

  // The kernels for these parameters, which must all be on devices of one kind. kInvalidArgument names a parameter that
  // is not, or that a kernel on `stream` cannot reach; kUnimplemented one whose device has no kernels, or none for its
  // dtype. Precondition: `indices` is not empty.
  absl::StatusOr<const UpdateOps*> OpsFor(const std::vector<size_t>& indices, const Stream& stream) const;

  // The additional work of the update's pass for parameters()[index], in its next step.
  TensorExtras ExtrasOf(size_t index) const;

  // Call when a step of these parameters is on the stream: counts it, marks their compute_copies as current, and clears
  // grad_factor and found_inf.
  void FinishStep(const std::vector<size_t>& indices);

  // The group of parameters()[index].
  size_t group_of(size_t index) const { return group_of_[index]; }

  // The names of group `group`'s parameters.
  std::vector<std::string> GroupNames(size_t group) const;

  StateBuffers& state() { return *state_; }

 private:
  // Sets a value that CheckHyperparameter allows.
  void Assign(size_t group, std::string_view name, double value);

  std::string name_;
  std::vector<ShardedParameter*> parameters_;
  size_t num_groups_ = 0;
  std::vector<size_t> group_of_;  // by parameter
  std::vector<int64_t> steps_;    // by parameter
  std::optional<uint64_t> rounding_seed_;
  Tensor grad_factor_;           // of the next step
  Tensor found_inf_;             // of the next step
  std::vector<size_t> updated_;  // by the last step
  std::unique_ptr<StateBuffers> state_;
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_OPTIMIZER_H_
