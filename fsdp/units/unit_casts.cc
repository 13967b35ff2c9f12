// SPDX-License-Identifier: Apache-2.0
//
// Forward casts at the border of a unit so that its layers see one dtype, and backward must undo that: the gradient of
// a tensor has the dtype of the tensor. Each cast remembers the dtype that came in, and the gradient is cast back to
// it.
#include "fsdp/fsdp/units/unit_casts.h"

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

absl::Status CastTo(DType dtype, Tensor& t, Tape& tape) {
  if (!t.defined() || !IsFloatingPoint(t.dtype()) || t.dtype() == dtype) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const Tensor cast, tape.Empty(dtype, t.shape()));
  tape.device().ops().CastDivide(t, cast, 1, tape.stream());
  t = cast;
  return absl::OkStatus();
}

std::optional<DType> FloatDType(const Tensor& t) {
  return t.defined() && IsFloatingPoint(t.dtype()) ? std::optional<DType>(t.dtype()) : std::nullopt;
}

}  // namespace

absl::Status UnitCasts::Input(int unit, bool training, Tensor& t, Tape& tape) {
  const UnitSettings& settings = SettingsOf(unit);
  made_[unit].input.reset();
  if (!settings.cast_inputs || (!training && settings.full_precision_in_eval)) return absl::OkStatus();
  made_[unit].input = FloatDType(t);
  return CastTo(unit < units_.size() ? units_.unit(unit).compute_dtype : settings.param_dtype.value_or(DType::kFloat32),
                t, tape);
}

absl::Status UnitCasts::Output(int unit, Tensor& t, Tape& tape) {
  const UnitSettings& settings = SettingsOf(unit);
  Made& made = made_[unit];
  made.output = FloatDType(t);
  const std::optional<DType> wanted = settings.restore_output_dtype ? made.input : settings.output_dtype;
  return wanted.has_value() ? CastTo(*wanted, t, tape) : absl::OkStatus();
}

absl::Status UnitCasts::GradOutput(int unit, Tensor& t, Tape& tape) const {
  return made_[unit].output.has_value() ? CastTo(*made_[unit].output, t, tape) : absl::OkStatus();
}

absl::Status UnitCasts::GradInput(int unit, Tensor& t, Tape& tape) const {
  return made_[unit].input.has_value() ? CastTo(*made_[unit].input, t, tape) : absl::OkStatus();
}

}  // namespace fsdp
