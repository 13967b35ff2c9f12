// SPDX-License-Identifier: Apache-2.0
//
// Conversions of tensors at the border of a model and of its units. PlaceInputs moves a model's inputs to its device,
// as PyTorch's FSDP does for the root's. UnitCasts casts a unit's inputs and outputs according to its precision
// settings, and their gradients back in backward. One thread; no call waits for the device. Unless noted, the only
// errors come from allocating a copy.
#ifndef FSDP_FSDP_UNITS_UNIT_CASTS_H_
#define FSDP_FSDP_UNITS_UNIT_CASTS_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/tape.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Replaces each defined tensor of host memory by a copy on the tape's device, if that is another one; the copy runs in
// stream order, and the stream holds the original until then. kInvalidArgument, naming the input and both devices, for
// memory of another GPU; kFailedPrecondition if the tape's work is captured, because a replay would read the same host
// memory again, whatever its contents by then.
absl::Status PlaceInputs(absl::Span<Tensor> inputs, Tape& tape);

class UnitCasts {
 public:
  // A bare module's index is units.size() plus its index in units.bare_modules(). `units` must outlive it.
  explicit UnitCasts(UnitStore& units) : units_(units) {}

  // Each replaces tensors by cast copies if the unit's settings require it, as work on the tape's stream, and remembers
  // the dtypes that they had. Only floating-point tensors are cast. With `training` off, a unit with
  // full_precision_in_eval does not cast its inputs. Outputs that must have the dtype of the inputs get the dtype of
  // the first floating-point input.
  absl::Status Inputs(int unit, bool training, absl::Span<Tensor> tensors, Tape& tape);
  absl::Status Outputs(int unit, absl::Span<Tensor> tensors, Tape& tape);

  // In backward: casts each gradient to the dtype that its tensor had before the last forward cast it.
  absl::Status GradOutputs(int unit, absl::Span<Tensor> tensors, Tape& tape) const;
  absl::Status GradInputs(int unit, absl::Span<Tensor> tensors, Tape& tape) const;

 private:
  static DTypes FloatDTypes(absl::Span<const Tensor> tensors);
  static absl::Status CastBack(const DTypes& dtypes, absl::Span<Tensor> tensors, Tape& tape);

  const UnitSettings& SettingsOf(int unit) const {
    return unit < units_.size() ? units_.unit(unit).settings : units_.bare_modules()[unit - units_.size()].settings;
  }

  UnitStore& units_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_CASTS_H_
