// SPDX-License-Identifier: Apache-2.0
//
// UnitCasts: the dtypes of what goes into a unit and comes out of it, forward and, the way back, backward.
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
  // `root` are the settings of a root module that is no unit; its index is units.size(). `units` must outlive it.
  UnitCasts(const UnitStore& units, const UnitSettings& root) : units_(units), root_(root), made_(units.size() + 1) {}

  // Each casts `t`, if the unit's settings say so, as work on the tape's stream, and remembers what it was. Tensors
  // that are not floating-point stay. `training` off: a unit with full_precision_in_eval casts nothing.
  absl::Status Input(int unit, bool training, Tensor& t, Tape& tape);
  absl::Status Output(int unit, Tensor& t, Tape& tape);

  // The way back: a gradient gets the dtype that the tensor had before it was cast.
  absl::Status GradOutput(int unit, Tensor& t, Tape& tape) const;
  absl::Status GradInput(int unit, Tensor& t, Tape& tape) const;

 private:
  // Dtypes before the casts of the last forward.
  struct Made {
    std::optional<DType> input, output;
  };

  const UnitSettings& SettingsOf(int unit) const { return unit < units_.size() ? units_.unit(unit).settings : root_; }

  const UnitStore& units_;
  const UnitSettings root_;
  std::vector<Made> made_;  // by unit
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_CASTS_H_
