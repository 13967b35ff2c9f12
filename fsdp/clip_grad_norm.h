// SPDX-License-Identifier: Apache-2.0
//
// The p-norm of all gradients over all ranks, and clipping by it. Formula: torch.nn.utils.clip_grad_norm_. Gradients of
// sharded units are summed over the ranks of their shard group, not over replicas, which hold equal gradients.
// Gradients that every rank holds whole (no_shard, ignored parameters) count once.
#ifndef FSDP_FSDP_CLIP_GRAD_NORM_H_
#define FSDP_FSDP_CLIP_GRAD_NORM_H_

#include "absl/status/statusor.h"
#include "fsdp/fsdp/grad_clip.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Multiplies all gradients by ClipFactor(norm, max_norm) (tensor/ops.h) and returns the norm that they had; 0 without
// gradients. `norm_type` is p, positive or infinity. kInvalidArgument for another p, and for a max_norm that is
// negative or NaN. Puts work on the model's stream and blocks until it is done. Collective.
absl::StatusOr<float> ClipShardedGradNorm(const ShardedModel& model, float max_norm, double norm_type);

// For p = 2 without waiting: if all gradients belong to units and are on the stream's device, nothing is scaled here,
// and the optimizer has to scale by the result's coefficient. Otherwise this is ClipShardedGradNorm, which blocks.
// Collective.
absl::StatusOr<GradClip> DeferClipShardedGradNorm(const ShardedModel& model, float max_norm);

// The sum of |t[i]|^p for a tensor in host memory, or the largest |t[i]| if `p` is infinite; NaN if any element is NaN.
// For norms that TensorOps has no kernel for. Adds in float64 in the order of the elements, so that every run gives the
// same bits. kInvalidArgument for a dtype that does not convert to float64.
absl::StatusOr<double> PowerSum(const Tensor& t, double p);

}  // namespace fsdp

#endif  // FSDP_FSDP_CLIP_GRAD_NORM_H_
