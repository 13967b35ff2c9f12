// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/unit_border.h"

#include "fsdp/fsdp/units/unit_settings.h"
#include "fsdp/libtorch/tensor_bridge.h"

namespace fsdp {

UnitBorder UnitBorder::Of(const UnitSettings& settings, DType compute_dtype) {
  UnitBorder border;
  if (settings.cast_inputs) border.input_type = ScalarTypeOf(compute_dtype);
  if (settings.output_dtype.has_value()) border.output_type = ScalarTypeOf(*settings.output_dtype);
  border.restores = settings.restore_output_dtype;
  border.full_precision_in_eval = settings.full_precision_in_eval;
  border.recomputes = settings.activation_checkpointing;
  return border;
}

at::Tensor CastFloating(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(type) : tensor;
}

}  // namespace fsdp
