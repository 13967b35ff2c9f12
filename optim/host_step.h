// SPDX-License-Identifier: Apache-2.0
//
// The parts of a step on the host that do not depend on the optimizer's formula.
#ifndef FSDP_OPTIM_HOST_STEP_H_
#define FSDP_OPTIM_HOST_STEP_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/optim/update_ops.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// The functions read host memory: call them in stream order, or after the stream was waited for.

// Whether found_inf skips the update.
bool Skips(const TensorExtras& extras);

// `data` rounded to `copy`; nothing if `copy` is undefined. After an update, and in place of one that is skipped, since
// the copy may have been stale.
absl::Status RefreshCopy(const Tensor& data, const Tensor& copy);

// The gradient times extras.grad_factor, rounded to its dtype, as by TensorOps::ScaleBy before.
absl::StatusOr<std::vector<float>> GradientOf(const ShardedParameter& parameter, const TensorExtras& extras);

// torch.lerp(start, end, weight) of one element, whose formula changes at 0.5.
float Lerp(float start, float end, float weight);

}  // namespace fsdp

#endif  // FSDP_OPTIM_HOST_STEP_H_
