// SPDX-License-Identifier: Apache-2.0
//
// UnitCasts: casts a unit's inputs and outputs as its precision settings ask, and their gradients back in backward. One
// thread; no call waits for the device. Errors are those of the allocation of a cast copy.
#ifndef FSDP_FSDP_UNITS_UNIT_CASTS_H_
#define FSDP_FSDP_UNITS_UNIT_CASTS_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/tape.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class UnitCasts {
 public:
  // A bare module's index is units.size() plus that in units.bare_modules(). `units` must outlive it.
  explicit UnitCasts(const UnitStore& units) : units_(units), made_(units.size() + units.bare_modules().size()) {}

  // Each replaces `t` by a cast copy if the unit's settings ask for it, as work on the tape's stream, and remembers the
  // dtype that `t` had. Other tensors than floating-point ones stay. With `training` off, a unit with
  // full_precision_in_eval does not cast its inputs.
  absl::Status Input(int unit, bool training, Tensor& t, Tape& tape);
  absl::Status Output(int unit, Tensor& t, Tape& tape);

  // In backward: casts a gradient to the dtype that the tensor had before the last forward cast it.
  absl::Status GradOutput(int unit, Tensor& t, Tape& tape) const;
  absl::Status GradInput(int unit, Tensor& t, Tape& tape) const;

 private:
  // Dtypes before the casts of the last forward.
  struct Made {
    std::optional<DType> input, output;
  };

  const UnitSettings& SettingsOf(int unit) const {
    return unit < units_.size() ? units_.unit(unit).settings : units_.bare_modules()[unit - units_.size()].settings;
  }

  const UnitStore& units_;
  std::vector<Made> made_;  // by unit
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_CASTS_H_
