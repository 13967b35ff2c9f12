// SPDX-License-Identifier: Apache-2.0
//
// UnitBorder: the casts and the recomputation at the entry and exit of a unit's forward, in LibTorch's terms.
#ifndef FSDP_LIBTORCH_UNIT_BORDER_H_
#define FSDP_LIBTORCH_UNIT_BORDER_H_

#include <ATen/ATen.h>

#include <optional>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct UnitSettings;

struct UnitBorder {
  std::optional<at::ScalarType> input_type = {};   // floating-point inputs are cast to it
  std::optional<at::ScalarType> output_type = {};  // and outputs to this one
  bool restores = false;                           // outputs get the dtype that the first cast input had
  bool full_precision_in_eval = false;             // inputs are not cast if nothing is kept for a backward
  bool recomputes = false;                         // activation checkpointing

  static UnitBorder Of(const UnitSettings& settings, DType compute_dtype);

  // True if this can only be done at a call of the unit's forward.
  bool needs_call() const { return output_type.has_value() || recomputes; }

  // The dtype of inputs in this pass.
  std::optional<at::ScalarType> InputType(bool training) const {
    return full_precision_in_eval && !training ? std::nullopt : input_type;
  }
};

// `tensor` in `type`, if it is a floating-point one.
at::Tensor CastFloating(const at::Tensor& tensor, at::ScalarType type);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_UNIT_BORDER_H_
