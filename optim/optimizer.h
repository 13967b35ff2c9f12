// SPDX-License-Identifier: Apache-2.0
//
// Optimizer: updates parameters from gradients, slice by slice; the base of AdamW and SGD. State lives in the
// parameters' slices' geometry, so whoever shards parameters shards optimizer state by the same intervals.
#ifndef FSDP_OPTIM_OPTIMIZER_H_
#define FSDP_OPTIM_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "optim/sharded_parameter.h"
#include "tensor/stream.h"

namespace fsdp {

// Hyperparameters by PyTorch's names ("lr", "weight_decay", "eps", "betas" as beta1 and beta2, ...) for one group.
struct ParamGroupState {
  std::vector<std::string> params;                     // fqns
  std::vector<std::pair<std::string, double>> values;  // name -> value, PyTorch's names
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One update of every parameter that has_grad, stream-ordered after the work that `stream` has so far. The first call
  // allocates the state. kInvalidArgument names a parameter whose dtype is not supported.
  virtual absl::Status Step(Stream& stream) = 0;

  // Forgets gradients (has_grad = false); their memory is reused.
  void ZeroGrad();

  // All parameters, in group order. Pointers are the caller's and outlive the optimizer; none is null.
  absl::Span<ShardedParameter* const> parameters() const { return parameters_; }

  // Names of the per-element states, e.g. {"exp_avg", "exp_avg_sq"}.
  virtual std::vector<std::string> StateNames() const = 0;

  // State `name` of parameters()[index]: 1-D, interval.size() elements, the live memory. Undefined before the
  // parameter's first step, unless `create`, which makes it (zero).
  virtual absl::StatusOr<Tensor> State(size_t index, std::string_view name, bool create = false) = 0;

  // Steps that parameters()[index] has taken: PyTorch's scalar state "step".
  virtual int64_t step_count(size_t index) const = 0;
  virtual void set_step_count(size_t index, int64_t steps) = 0;

  // The groups with their hyperparameters now.
  virtual std::vector<ParamGroupState> ParamGroups() const = 0;

  // Sets one hyperparameter ("lr") in every group; kInvalidArgument for an unknown name.
  virtual absl::Status SetHyperparameter(std::string_view name, double value) = 0;

 protected:
  std::vector<ShardedParameter*> parameters_;
};

// For implementations: kInvalidArgument, naming the parameter, unless data is float32, grad float32 or bfloat16, and
// both have the interval's size.
absl::Status CheckUpdatable(const ShardedParameter& parameter);

}  // namespace fsdp

#endif  // FSDP_OPTIM_OPTIMIZER_H_
