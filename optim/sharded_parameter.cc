// SPDX-License-Identifier: Apache-2.0
//
// A module without FSDP is a single shard: the interval of each parameter is all of it. NamedParameters gives a shared
// parameter once for each name; an optimizer that had it twice would step it twice, so only its first name is used.
#include "fsdp/optim/sharded_parameter.h"

#include <set>
#include <utility>

#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<std::vector<std::unique_ptr<ShardedParameter>>> UnshardedParameters(Module& module, Device& device) {
  std::vector<std::unique_ptr<ShardedParameter>> whole;
  std::set<const Parameter*> done;
  for (const auto& [name, parameter] : module.NamedParameters()) {
    if (!parameter->requires_grad || !done.insert(parameter.get()).second) continue;
    const int64_t numel = parameter->shape.numel();
    auto sharded = std::make_unique<ShardedParameter>();
    sharded->fqn = name;
    sharded->shape = parameter->shape;
    sharded->part = parameter->part;
    sharded->interval = {0, numel};
    FSDP_ASSIGN_OR_RETURN(const Tensor data, parameter->Data());
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, parameter->Grad());
    sharded->data = data.View({numel});
    sharded->grad = grad.View({numel});
    sharded->device = &device;
    sharded->has_grad = true;
    whole.push_back(std::move(sharded));
  }
  return whole;
}

}  // namespace fsdp
