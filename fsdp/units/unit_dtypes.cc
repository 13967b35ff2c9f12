// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/unit_dtypes.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/unit.h"

namespace fsdp {
namespace {

std::string Name(DType dtype) { return std::string(DTypeName(dtype)); }

std::string Described(const Parameter& parameter) {
  return absl::StrCat("\"", parameter.fqn, "\" is ", Name(parameter.dtype));
}

absl::Status CheckFlat(const UnitModule& unit) {
  const Parameter& first = *unit.parameters[0];
  for (const auto& parameter : unit.parameters) {
    if (parameter->dtype == first.dtype && IsFloatingPoint(parameter->dtype)) continue;
    return absl::InvalidArgumentError(absl::StrCat("unit ", unit.display_name(),
                                                   ": parameters of one flat parameter must have one floating-point "
                                                   "dtype, but ",
                                                   Described(*parameter), " and ", Described(first)));
  }
  return absl::OkStatus();
}

// The dtype of the trained parameters is the one of `first`.
absl::Status CheckTrained(const UnitModule& unit, const Parameter& first) {
  for (const auto& parameter : unit.parameters) {
    if (!parameter->requires_grad) continue;
    if (!IsFloatingPoint(parameter->dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("unit ", unit.display_name(), ": parameter ",
                                                     Described(*parameter),
                                                     " and requires a gradient: expected a floating-point dtype, or "
                                                     "requires_grad off"));
    }
    if (parameter->dtype == first.dtype) continue;
    return absl::InvalidArgumentError(absl::StrCat("unit ", unit.display_name(),
                                                   ": parameters that require gradients must have one floating-point "
                                                   "dtype, but ",
                                                   Described(*parameter), " and ", Described(first),
                                                   ": freeze one of them, or give it a unit of its own"));
  }
  return absl::OkStatus();
}

const Parameter& FirstOf(const ParameterGroup& parameters) {
  const auto is_trained = [](const auto& parameter) { return parameter->requires_grad; };
  const auto is_computed = [](const auto& parameter) { return IsComputed(parameter->dtype); };
  auto found = std::find_if(parameters.begin(), parameters.end(), is_trained);
  if (found == parameters.end()) found = std::find_if(parameters.begin(), parameters.end(), is_computed);
  return found == parameters.end() ? *parameters[0] : **found;
}

}  // namespace

bool IsComputed(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

DType ComputeDType(DType dtype, const UnitSettings& settings) {
  return IsComputed(dtype) ? settings.param_dtype.value_or(dtype) : dtype;
}

absl::StatusOr<std::vector<ParameterGroup>> ByDType(const UnitModule& unit, LayoutKind layout) {
  if (layout != LayoutKind::kDim0) {
    FSDP_RETURN_IF_ERROR(CheckFlat(unit));
    return std::vector<ParameterGroup>{unit.parameters};
  }
  const Parameter& first = FirstOf(unit.parameters);
  FSDP_RETURN_IF_ERROR(CheckTrained(unit, first));
  std::vector<DType> dtypes = {first.dtype};
  std::vector<ParameterGroup> groups(1);
  for (const auto& parameter : unit.parameters) {
    const size_t at = std::find(dtypes.begin(), dtypes.end(), parameter->dtype) - dtypes.begin();
    if (at == dtypes.size()) {
      dtypes.push_back(parameter->dtype);
      groups.emplace_back();
    }
    groups[at].push_back(parameter);
  }
  return groups;
}

absl::Status CheckTrains(const Unit& unit) {
  if (!unit.dtype_group_of.has_value() && IsFloatingPoint(unit.dtype)) return absl::OkStatus();
  for (const auto& parameter : unit.parameters) {
    if (!parameter->requires_grad) continue;
    return absl::FailedPreconditionError(absl::StrCat("parameter ", Described(*parameter), ", in unit ",
                                                      unit.display_name(),
                                                      ", which was made to be gathered as it is: requires_grad was set "
                                                      "since then; set it before the model is sharded"));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
