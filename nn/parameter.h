// SPDX-License-Identifier: Apache-2.0
//
// Parameter: a tensor that a module learns. It is declared with name, shape and initial distribution and owns no memory
// at first ("meta"): either Module::Materialize allocates it, or FSDP binds `data` and `grad` to views of a unit's
// unsharded buffers while the unit is unsharded, and unbinds them afterwards, so that a stale use is an error and never
// a wrong number.
#ifndef FSDP_NN_PARAMETER_H_
#define FSDP_NN_PARAMETER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/nn/initializer.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/nn/parameter_part.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Not thread-safe: FSDP binds and unbinds on the thread that runs the model. Modules hold it by shared_ptr, since
// several may share one.
struct Parameter {
  std::string fqn;  // fully qualified name under the root module, first one if shared; set by Module::AssignNames
  Shape shape;
  DType dtype = DType::kFloat32;  // of the original parameter; `data` may be bound in a lower precision
  Initializer initializer;
  bool requires_grad = true;

  // Set if the parameter is a part of a larger tensor, which has the same name on other ranks. The initializer is for
  // the larger tensor.
  std::optional<ParameterPart> part;

  // The shape that state dicts and checkpoints show.
  const Shape& whole_shape() const { return part ? part->whole : shape; }

  // The first values of elements `interval`, as float32, from the initializer under `seed`.
  void FillInitial(uint64_t seed, const Interval& interval, float* out) const;

  Tensor data;  // `shape`, in the compute dtype; undefined while sharded
  Tensor grad;  // `shape`; backward ADDS the gradient to it; undefined outside its unit's backward

  // `data` / `grad`, or kFailedPrecondition naming the parameter when it is not bound. A backward gets the tensor that
  // it adds to by Grad(), which sets grad_used: under FSDP2 a parameter has no gradient if no backward called Grad(),
  // and an optimizer skips it.
  absl::StatusOr<Tensor> Data() const;
  absl::StatusOr<Tensor> Grad();

  // The same for a kernel that can replace the gradient, too, and writes all of it: the first after FSDP bound `grad`
  // does, so that its memory need not be zeroed.
  absl::StatusOr<ParameterGrad> GradToWrite();

  bool grad_used = false;  // Grad() or GradToWrite() was called since `grad` was bound
  bool sharded = false;    // FSDP has the values, in `dtype`, and binds `data` and `grad` when it computes

  // Not null while `grad` is bound to memory that holds anything, until Grad() or GradToWrite(): the stream on which
  // Grad() sets it to zero. Must outlive that. Code that uses `grad` itself comes after one of the two.
  Stream* zero_grad_stream = nullptr;
};

// Allocates memory for `parameter` on `device`, in its dtype: data from its initializer under `seed`, grad zero. Blocks
// until the values have been copied. The values are drawn in float32 on the host and rounded once, so they have the
// same bits on every device. kResourceExhausted if the device has no room.
absl::Status MaterializeParameter(Parameter& parameter, Device& device, uint64_t seed, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_NN_PARAMETER_H_
