// SPDX-License-Identifier: Apache-2.0
//
// ShardedParameter: one parameter as an optimizer sees it: the slice that this rank owns. `data` and `grad` are views
// of a flat shard (FSDP) or whole tensors (a plain module); the optimizer neither knows nor cares.
#ifndef FSDP_OPTIM_SHARDED_PARAMETER_H_
#define FSDP_OPTIM_SHARDED_PARAMETER_H_

#include <memory>
#include <string>
#include <vector>

#include "fsdp/nn/module.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

struct ShardedParameter {
  std::string fqn;
  Shape shape;               // of the whole parameter
  Interval interval;         // the elements that this rank owns; may be empty
  Tensor data;               // 1-D, interval.size() elements, float32
  Tensor grad;               // likewise, float32 or bfloat16; counts only while has_grad; undefined in a frozen unit
  Device* device = nullptr;  // where both live and where the optimizer puts its state; never null
  bool has_grad = false;     // false after ZeroGrad and for parameters that the step did not reach: PyTorch's grad None

  // False: frozen. It never has a gradient, and an optimizer has no use for it.
  bool requires_grad = true;

  // `data` in bfloat16, for what computes in it; undefined: nothing wants it. Whoever changes `data` writes it too or
  // says that it is not current.
  Tensor compute_copy;
  bool compute_copy_current = false;
};

// The parameters of a module that was materialised on `device`, whole, each shared one once, with grads bound and
// has_grad set; for training without FSDP. kFailedPrecondition names a parameter that is not bound.
absl::StatusOr<std::vector<std::unique_ptr<ShardedParameter>>> WholeParameters(Module& module, Device& device);

}  // namespace fsdp

#endif  // FSDP_OPTIM_SHARDED_PARAMETER_H_
