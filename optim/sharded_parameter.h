// SPDX-License-Identifier: Apache-2.0
//
// ShardedParameter: one parameter for an optimizer: the slice that this rank owns. `data` and `grad` are views of a
// flat shard (FSDP) or of whole tensors (a plain module); the optimizer does not distinguish them.
#ifndef FSDP_OPTIM_SHARDED_PARAMETER_H_
#define FSDP_OPTIM_SHARDED_PARAMETER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/nn/module.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

struct ShardedParameter {
  std::string fqn;
  Shape shape;               // of the whole parameter, as the module has it; or of this rank's part, see below
  Interval interval;         // the elements of `shape` that this rank owns; may be empty
  Tensor data;               // 1-D, interval.size() elements, in the original dtype, which optimizer states have too
  Tensor grad;               // likewise, or narrower; counts only while has_grad; undefined in a frozen unit
  Device* device = nullptr;  // of both, and of the optimizer's state; never null
  bool has_grad = false;     // false after ZeroGrad and for parameters that the step did not reach: PyTorch's grad None

  // Set if the module's parameter is a part of a larger tensor (Parameter::part), which state dicts show, and if the
  // parameter is cut on another dimension than 0; then `shape` is the shape of this rank's part.
  std::optional<ParameterPart> part;
  const Shape& whole_shape() const { return part ? part->whole : shape; }

  // False: frozen. The parameter never has a gradient, and optimizers skip it.
  bool requires_grad = true;

  // `data` rounded to bfloat16, for compute in that dtype; undefined if not needed.
  Tensor compute_copy;
  bool compute_copy_current = false;

  // The number of changes of `data`. A holder of a copy, such as an unsharded unit, compares this with the version that
  // the copy was made from.
  int64_t version = 0;

  // Call after changing `data` other than by an optimizer, so that copies of the old values are not used again. Ranks
  // that share the parameter must all call it, because they gather the new values together.
  void MarkChanged() {
    ++version;
    compute_copy_current = false;
  }
};

// For training without FSDP: the parameters of a module that was materialised on `device`, whole, shared ones once,
// with gradients bound and has_grad set. Frozen parameters are left out. kFailedPrecondition names a parameter that is
// not bound.
absl::StatusOr<std::vector<std::unique_ptr<ShardedParameter>>> UnshardedParameters(Module& module, Device& device);

}  // namespace fsdp

#endif  // FSDP_OPTIM_SHARDED_PARAMETER_H_
