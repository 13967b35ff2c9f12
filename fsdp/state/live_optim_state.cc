// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/live_optim_state.h"

#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/optim_entries.h"

namespace fsdp {

absl::StatusOr<LiveOptimState> LiveOptimState::AddTo(StateDict& state, Optimizer& optimizer) {
  LiveOptimState live;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const ShardedParameter& parameter = *optimizer.parameters()[i];
    for (const std::string& name : optimizer.StateNames()) {
      FSDP_ASSIGN_OR_RETURN(const Tensor slice, optimizer.State(i, name, /*create=*/true));
      state.Set(StateKey::OptimState(parameter.fqn, name),
                LiveSlice(parameter.shape, parameter.interval, slice, /*replica=*/0));
    }
    live.steps_.push_back(HostScalar(0));
    state.Set(StateKey::OptimState(parameter.fqn, kOptimStep),
              LiveSlice(Shape(), {0, 1}, live.steps_.back(), /*replica=*/0));
  }
  return live;
}

void LiveOptimState::Commit(Optimizer& optimizer) const {
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    optimizer.set_step_count(i, static_cast<int64_t>(*steps_[i].data_as<float>()));
  }
}

}  // namespace fsdp
