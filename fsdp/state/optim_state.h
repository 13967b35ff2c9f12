// SPDX-License-Identifier: Apache-2.0
//
// The optimizer's half of state dicts, keyed by original parameter names, with tensors in the same forms as parameters.
// PyTorch's layout: state/<fqn>/<state>, a float32 scalar "step" each, param_groups as JSON. Parameters that no unit
// has are there whole.
#ifndef FSDP_FSDP_STATE_OPTIM_STATE_H_
#define FSDP_FSDP_STATE_OPTIM_STATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/optim_entries.h"
#include "fsdp/fsdp/state/state_form.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Adds the state of `optimizer` to `state`. Parameters that never stepped have none; entries that are there already,
// the user's own, stay. kFailedPrecondition names a parameter whose state is missing on a rank or differs in its steps.
// Collective, but for LOCAL.
absl::Status AddOptimState(const UnitStore& units, Optimizer& optimizer, const StateForm& form, StateDict& state);

// Loads what AddOptimState added, for every parameter of `optimizer` that `state` has, and param_groups if it has them;
// parameters without any entry go back to never having stepped. kInvalidArgument, before anything is changed, names a
// parameter that has some of its states but not all, an entry of another shape or form, and, if `strict`, one of a
// parameter that the optimizer does not have; otherwise these are returned. Collective, but for kLocal.
absl::StatusOr<std::vector<std::string>> LoadOptimState(const UnitStore& units, const StateDict& state,
                                                        StateSource from, bool strict, Optimizer& optimizer);

// The scalar "step" of a parameter.
ShardedTensor StepScalar(int64_t steps, int replica);

class LiveOptimState {
 public:
  // Tensors are aliased; the "step" scalars are copies, which Commit gives to the optimizer.
  static absl::StatusOr<LiveOptimState> AddTo(StateDict& state, Optimizer& optimizer);
  void Commit(Optimizer& optimizer) const;

 private:
  std::vector<Tensor> steps_;  // host memory, by parameter of the optimizer
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_STATE_H_
