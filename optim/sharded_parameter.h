// SPDX-License-Identifier: Apache-2.0
//
// ShardedParameter: one parameter as an optimizer sees it: the slice that this rank owns. `data` and `grad` are views of a
// flat shard (FSDP) or whole tensors (a plain module); the optimizer neither knows nor cares.
#ifndef FSDP_OPTIM_SHARDED_PARAMETER_H_
#define FSDP_OPTIM_SHARDED_PARAMETER_H_

#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"
#include "tensor/interval.h"
#include "tensor/tensor.h"

namespace fsdp {

struct ShardedParameter {
  std::string fqn;
  Shape shape;        // of the whole parameter
  Interval interval;  // the elements that this rank owns; may be empty
  Tensor data;        // 1-D, interval.size() elements
  Tensor grad;        // likewise; its contents count only while has_grad
  bool has_grad = false;  // false after ZeroGrad and for parameters that the step did not reach: PyTorch's grad None
};

// The parameters of a materialised module, whole, each shared one once, with grads bound; for training without FSDP.
absl::StatusOr<std::vector<std::unique_ptr<ShardedParameter>>> WholeParameters(Module& module);

}  // namespace fsdp

#endif  // FSDP_OPTIM_SHARDED_PARAMETER_H_
