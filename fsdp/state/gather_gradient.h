// SPDX-License-Identifier: Apache-2.0
//
// GatherGradient: the whole gradient of one parameter, for a program that logs or checks it, or decides by it.
#ifndef FSDP_FSDP_STATE_GATHER_GRADIENT_H_
#define FSDP_FSDP_STATE_GATHER_GRADIENT_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// All-gathers the gradients of unit `u` into `gather`, in `dtype`: zero if this rank's parameter does not have one.
// Collective.
absl::Status GatherGradients(const UnitStore& units, int u, DType dtype, StateGather& gather);

// A copy of the gradient of the parameter named `fqn` (any of its names), of the parameter's shape, on the device of
// `units`; undefined if no rank has one, as PyTorch's grad is None. A rank without a gradient counts as zero if others
// have one. The gradients must have been reduced. Communicates for the whole unit of the parameter, whose memory it
// needs a second time meanwhile. kNotFound for a name that no unit has; kFailedPrecondition for a unit that is frozen
// whole. Collective; blocks.
absl::StatusOr<Tensor> GatherGradient(const UnitStore& units, std::string_view fqn);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_GATHER_GRADIENT_H_
