// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/unit_dtypes.h"

#include <cstddef>
#include <optional>
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

absl::StatusOr<DType> ComputeDTypeOf(const Parameter& parameter, const UnitSettings& settings) {
  const DType usual = ComputeDType(parameter.dtype, settings);
  if (!settings.param_dtype_override_fn) return usual;
  const std::optional<DType> own = settings.param_dtype_override_fn(parameter);
  if (!own.has_value() || own == settings.param_dtype) return usual;
  if (*own == parameter.dtype) return *own;
  return absl::InvalidArgumentError(absl::StrCat(
      "param_dtype_override_fn returned ", Name(*own), ", but parameter ", Described(parameter),
      ": expected its dtype, param_dtype",
      settings.param_dtype.has_value() ? absl::StrCat(" (", Name(*settings.param_dtype), ")") : "", " or nothing"));
}

// The parameter whose dtypes are the unit's own: a trained one, if there is one, without an override, if there is one.
size_t FirstOf(const UnitModule& unit, const std::vector<DType>& compute_dtypes, const UnitSettings& settings) {
  const auto rank = [&](size_t i) {
    const Parameter& parameter = *unit.parameters[i];
    if (!parameter.requires_grad) return IsComputed(parameter.dtype) ? 1 : 0;
    return compute_dtypes[i] == ComputeDType(parameter.dtype, settings) ? 3 : 2;
  };
  size_t first = 0;
  for (size_t i = 1; i < unit.parameters.size(); ++i) {
    if (rank(i) > rank(first)) first = i;
  }
  return first;
}

DTypeGroup& GroupOf(DType dtype, DType compute_dtype, std::vector<DTypeGroup>& groups) {
  for (DTypeGroup& group : groups) {
    if (group.dtype == dtype && group.compute_dtype == compute_dtype) return group;
  }
  return groups.emplace_back(DTypeGroup{dtype, compute_dtype, {}});
}

}  // namespace

bool IsComputed(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

DType ComputeDType(DType dtype, const UnitSettings& settings) {
  return IsComputed(dtype) ? settings.param_dtype.value_or(dtype) : dtype;
}

absl::StatusOr<std::vector<DTypeGroup>> ByDType(const UnitModule& unit, const UnitSettings& settings) {
  std::vector<DType> compute_dtypes;
  for (const auto& parameter : unit.parameters) {
    FSDP_ASSIGN_OR_RETURN(const DType compute, ComputeDTypeOf(*parameter, settings));
    compute_dtypes.push_back(compute);
  }
  const size_t first = FirstOf(unit, compute_dtypes, settings);
  const Parameter& of_first = *unit.parameters[first];
  FSDP_RETURN_IF_ERROR(settings.layout == LayoutKind::kDim0 ? CheckTrained(unit, of_first) : CheckFlat(unit));
  std::vector<DTypeGroup> groups;
  GroupOf(of_first.dtype, compute_dtypes[first], groups);
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    GroupOf(unit.parameters[i]->dtype, compute_dtypes[i], groups).parameters.push_back(unit.parameters[i]);
  }
  return groups;
}

absl::Status CheckTrains(const Unit& unit, const Unit& part) {
  if (part.dtype == unit.dtype && IsFloatingPoint(part.dtype)) return absl::OkStatus();
  for (const auto& parameter : part.parameters) {
    if (!parameter->requires_grad) continue;
    return absl::FailedPreconditionError(absl::StrCat("parameter ", Described(*parameter), ", in unit ",
                                                      part.display_name(),
                                                      ", which was made to be gathered as it is: requires_grad was set "
                                                      "since then; set it before the model is sharded"));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
