// SPDX-License-Identifier: Apache-2.0
//
// Forward casts at the border of a unit so that its layers see one dtype, and backward must undo that: the gradient of
// a tensor has the dtype of the tensor. Each cast remembers the dtype of its input, and the gradient is cast back to
// it.
#include "fsdp/fsdp/units/unit_casts.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {
namespace {

absl::Status CastTo(DType dtype, Tensor& t, Tape& tape) {
  if (!t.defined() || !IsFloatingPoint(t.dtype()) || t.dtype() == dtype) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const Tensor cast, tape.EmptyLike(t, dtype));
  // Padding is cast along, so that the rows of both tensors stay equally far apart.
  const bool padded = !t.is_contiguous();
  tape.device().ops().CastDivide(padded ? t.WithPadding() : t, padded ? cast.WithPadding() : cast, 1, tape.stream());
  t = cast;
  return absl::OkStatus();
}

absl::Status PlaceInput(size_t index, const DeviceId& device, Tensor& input, Tape& tape) {
  const std::string is = absl::StrCat("input ", index, " of the model is on ", DeviceName(input.device()),
                                      ", and the model computes on ", DeviceName(device));
  if (input.device().type != DeviceType::kCpu) return absl::InvalidArgumentError(absl::StrCat(is, ": copy it there"));
  if (IsCapturing(tape.stream())) {
    return absl::FailedPreconditionError(
        absl::StrCat(is, ": a captured step reads tensors of its device, which each replay finds filled anew"));
  }
  FSDP_ASSIGN_OR_RETURN(Tensor placed, tape.Empty(input.dtype(), input.shape()));
  // The stream holds the original until the copy has run: the caller may drop it.
  tape.stream().CopyAsync(placed.data(), input.data(), input.nbytes());
  tape.stream().RunAlways([host = std::exchange(input, placed)](const absl::Status& so_far) { return so_far; });
  return absl::OkStatus();
}

}  // namespace

absl::Status PlaceInputs(absl::Span<Tensor> inputs, Tape& tape) {
  const DeviceId device = tape.device().id();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].device() == device) continue;
    FSDP_RETURN_IF_ERROR(PlaceInput(i, device, inputs[i], tape));
  }
  return absl::OkStatus();
}

DTypes UnitCasts::FloatDTypes(absl::Span<const Tensor> tensors) {
  DTypes dtypes(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && IsFloatingPoint(tensors[i].dtype())) dtypes[i] = tensors[i].dtype();
  }
  return dtypes;
}

absl::Status UnitCasts::CastBack(const DTypes& dtypes, absl::Span<Tensor> tensors, Tape& tape) {
  for (size_t i = 0; i < tensors.size() && i < dtypes.size(); ++i) {
    if (dtypes[i].has_value()) FSDP_RETURN_IF_ERROR(CastTo(*dtypes[i], tensors[i], tape));
  }
  return absl::OkStatus();
}

absl::Status UnitCasts::Inputs(int unit, bool training, absl::Span<Tensor> tensors, Tape& tape) {
  const UnitSettings& settings = SettingsOf(unit);
  // Cleared even if nothing is cast: a restored output dtype would otherwise come from an earlier pass.
  units_.pass(unit).inputs.clear();
  if (!settings.cast_inputs || (!training && settings.full_precision_in_eval)) return absl::OkStatus();
  units_.pass(unit).inputs = FloatDTypes(tensors);
  const DType own = unit < units_.size() ? units_.unit(unit).compute_dtype : DType::kFloat32;
  const DType dtype = settings.param_dtype.value_or(own);
  for (Tensor& t : tensors) FSDP_RETURN_IF_ERROR(CastTo(dtype, t, tape));
  return absl::OkStatus();
}

absl::Status UnitCasts::Outputs(int unit, absl::Span<Tensor> tensors, Tape& tape) {
  const UnitSettings& settings = SettingsOf(unit);
  PassState& pass = units_.pass(unit);
  pass.outputs = FloatDTypes(tensors);
  std::optional<DType> wanted = settings.output_dtype;
  if (settings.restore_output_dtype) {
    // The settings' output dtype does not apply: FSDP1 returns outputs in the dtype of the inputs.
    wanted.reset();
    for (const std::optional<DType>& input : pass.inputs) {
      if (!wanted.has_value()) wanted = input;
    }
  }
  if (!wanted.has_value()) return absl::OkStatus();
  for (Tensor& t : tensors) FSDP_RETURN_IF_ERROR(CastTo(*wanted, t, tape));
  return absl::OkStatus();
}

absl::Status UnitCasts::GradOutputs(int unit, absl::Span<Tensor> tensors, Tape& tape) const {
  return CastBack(units_.pass(unit).outputs, tensors, tape);
}

absl::Status UnitCasts::GradInputs(int unit, absl::Span<Tensor> tensors, Tape& tape) const {
  return CastBack(units_.pass(unit).inputs, tensors, tape);
}

}  // namespace fsdp
