// SPDX-License-Identifier: Apache-2.0
//
// Recompute: activation checkpointing, as PyTorch's torch.utils.checkpoint (reentrant): autograd keeps only the inputs
// of a part of forward, which runs again in backward. ShardedModule::Checkpoint is the public side.
#ifndef FSDP_LIBTORCH_RECOMPUTE_H_
#define FSDP_LIBTORCH_RECOMPUTE_H_

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <vector>

#include "fsdp/libtorch/unit_follower.h"

namespace fsdp {

using TensorsFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// `forward(inputs)`, within a forward of `follower`. Throws c10::Error, and everything that `forward` throws.
std::vector<at::Tensor> Recompute(const std::shared_ptr<UnitFollower>& follower, TensorsFunction forward,
                                  const std::vector<at::Tensor>& inputs);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_RECOMPUTE_H_
