// SPDX-License-Identifier: Apache-2.0
//
// LiveOptimState: an optimizer's slices as a LOCAL state dict whose tensors a checkpoint fills in place, those of
// parameters that never stepped too.
#ifndef FSDP_FSDP_STATE_LIVE_OPTIM_STATE_H_
#define FSDP_FSDP_STATE_LIVE_OPTIM_STATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

class LiveOptimState {
 public:
  // Tensors are aliased; the "step" scalars are copies, which Commit gives to the optimizer.
  static absl::StatusOr<LiveOptimState> AddTo(StateDict& state, Optimizer& optimizer);
  void Commit(Optimizer& optimizer) const;

 private:
  std::vector<Tensor> steps_;  // host memory, by parameter of the optimizer
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_LIVE_OPTIM_STATE_H_
