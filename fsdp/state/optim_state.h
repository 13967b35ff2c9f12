// SPDX-License-Identifier: Apache-2.0
//
// The optimizer's half of state dicts, keyed by original parameter names, with tensors in the same forms as parameters.
// PyTorch's layout: state/<fqn>/<state>, a float32 scalar "step" for each parameter, param_groups as JSON. The state of
// parameters outside all units is whole.
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

// Adds the state of `optimizer` to `state`. Parameters that never stepped do not have any. The user's own entries of
// `state` stay, and the entries of other optimizers, whose parameters must be others: WithParamGroups names one that is
// not. kFailedPrecondition names a parameter whose state is missing on a rank or differs in its steps. Collective,
// except LOCAL; blocks.
absl::Status AddOptimState(const UnitStore& units, Optimizer& optimizer, const StateForm& form, StateDict& state);

// The inverse of AddOptimState: loads the state of every parameter of `optimizer` that `state` has, and param_groups if
// `state` has them. Parameters without any entry go back to never having stepped. Returns the names of parameters that
// the optimizer does not have, but for parameters of the groups of another optimizer (SavedParamGroups).
// kInvalidArgument, before anything is changed, for a parameter with some of its states but not all, an entry of
// another shape or form, groups that do not correspond, and, if `strict`, a parameter that would be returned.
// Collective, except kLocal; blocks.
absl::StatusOr<std::vector<std::string>> LoadOptimState(const UnitStore& units, const StateDict& state,
                                                        StateSource from, bool strict, Optimizer& optimizer);

// The scalar "step" of a parameter, float32 as in PyTorch.
ShardedTensor StepScalar(int64_t steps, int replica);

// An optimizer's slices as a LOCAL state dict whose tensors a checkpoint fills in place, including parameters that
// never stepped.
class LiveOptimState {
 public:
  // Adds all states of `optimizer` to `state`. Tensors are aliased, and made if they do not exist; the "step" scalars
  // are copies. kInvalidArgument names a parameter whose state another optimizer has added.
  static absl::StatusOr<LiveOptimState> AddTo(StateDict& state, Optimizer& optimizer);

  // If PyTorch's optimizer of this kind saves no "step" (needs_step): takes these entries out of `state`, for a source
  // without them, and returns true. A parameter with states then counts as having taken one step.
  bool TakeOutSteps(const Optimizer& optimizer, StateDict& state);

  // After the entries were filled: sets the optimizer's step counts from them. A parameter whose "step" was not filled
  // goes back to never having stepped: its states become zero, by work on `stream`, which Commit waits for.
  absl::Status Commit(Optimizer& optimizer, Stream& stream) const;

 private:
  std::vector<Tensor> steps_;  // host memory, by parameter of the optimizer
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_STATE_H_
