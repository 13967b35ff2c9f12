// SPDX-License-Identifier: Apache-2.0
//
// The 2-norm of all gradients over all ranks, and clipping by it. Formula: torch.nn.utils.clip_grad_norm_.
#ifndef FSDP_FSDP_CLIP_GRAD_NORM_H_
#define FSDP_FSDP_CLIP_GRAD_NORM_H_

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "fsdp/unit.h"

namespace fsdp {

// Scales the gradients of all parameters that has_grad by min(1, max_norm / (norm + 1e-6)), unless max_norm is 0, and
// returns the norm before. Work goes to `stream`, after which it blocks. Collective.
absl::StatusOr<float> ClipShardedGradNorm(const UnitStore& units, ProcessGroup& group, float max_norm, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_FSDP_CLIP_GRAD_NORM_H_
