// SPDX-License-Identifier: Apache-2.0
//
// The optimizer's half of state dicts, keyed by original parameter names, with tensors in the same forms as parameters.
// PyTorch's layout: state/<fqn>/<state>, a float32 scalar "step" each, param_groups as JSON.
#ifndef FSDP_FSDP_OPTIM_STATE_H_
#define FSDP_FSDP_OPTIM_STATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "fsdp/state_dict_config.h"
#include "fsdp/state_gather.h"
#include "fsdp/unit.h"
#include "optim/optimizer.h"
#include "tensor/state_dict.h"

namespace fsdp {

GatherForm FormOf(const OptimStateDictConfig& config);

// Adds the state of `optimizer` to `state`. Parameters that never stepped have none. Collective.
absl::Status AddOptimState(const UnitStore& units, ProcessGroup& group, Optimizer& optimizer, const GatherForm& form,
                           StateDict& state);

// Loads what AddOptimState added, for every parameter of `optimizer` that `state` has; parameters without any entry go
// back to never having stepped, a partial entry is an error. Collective.
absl::Status LoadOptimState(const UnitStore& units, ProcessGroup& group, const StateDict& state, StateDictType type,
                            Optimizer& optimizer);

// The optimizer's live slices, for a checkpoint to fill: tensors are aliased; the "step" scalars are copies, put back
// by Commit.
class LiveOptimState {
 public:
  static absl::StatusOr<LiveOptimState> AddTo(StateDict& state, Optimizer& optimizer);
  void Commit(Optimizer& optimizer) const;

 private:
  std::vector<Tensor> steps_;  // host memory, by parameter of the optimizer
};

// PyTorch's param_groups, as JSON: [{"params": [names], "lr": ..., "betas": [...], ...}, ...].
std::string ParamGroupsJson(const Optimizer& optimizer);

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIM_STATE_H_
