// SPDX-License-Identifier: Apache-2.0
//
// Each rule is a function, used by the host's kernels and by CUDA's, so that both refuse the same operands with the
// same messages.
#include "fsdp/tensor/check_operands.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// `numel` elements of float32; any number if it is negative.
absl::Status CheckFloat32(std::string_view op, std::string_view role, const Tensor& t, int64_t numel) {
  FSDP_RETURN_IF_ERROR(CheckDefined(op, role, t));
  if (t.dtype() == DType::kFloat32 && (numel < 0 || t.numel() == numel)) return absl::OkStatus();
  const std::string wanted = numel < 0    ? "float32"
                             : numel == 1 ? "one float32 element"
                                          : absl::StrCat(numel, " float32 elements");
  return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": ", std::string(role), " is ",
                                                 std::string(DTypeName(t.dtype())), " ", t.shape().ToString(), ", not ",
                                                 wanted));
}

// Does not compute begin + numel, which may overflow for a wrong interval.
bool Has(const Tensor& t, int64_t begin, int64_t numel) {
  return begin >= 0 && numel >= 0 && begin <= t.numel() && numel <= t.numel() - begin;
}

}  // namespace

absl::Status CheckDefined(std::string_view op, std::string_view role, const Tensor& t) {
  if (t.defined() && t.is_contiguous()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(op), ": ", std::string(role), t.defined() ? " has padded rows" : " is undefined"));
}

absl::Status CheckFloats(std::string_view op, std::string_view role, const Tensor& t) {
  FSDP_RETURN_IF_ERROR(CheckDefined(op, role, t));
  switch (t.dtype()) {
    case DType::kFloat64:
    case DType::kFloat32:
    case DType::kBFloat16:
    case DType::kFloat16:
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": ", std::string(role), " is ",
                                                     std::string(DTypeName(t.dtype())),
                                                     ", not float64, float32, bfloat16 or float16"));
  }
}

absl::Status CheckScalar(std::string_view op, std::string_view role, const Tensor& t) {
  return CheckFloat32(op, role, t, 1);
}

absl::Status CheckPair(std::string_view op, const Tensor& source, const Tensor& destination) {
  FSDP_RETURN_IF_ERROR(CheckFloats(op, "source", source));
  FSDP_RETURN_IF_ERROR(CheckFloats(op, "destination", destination));
  if (source.numel() == destination.numel()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": source has ", source.numel(),
                                                 " elements, destination has ", destination.numel()));
}

absl::Status CheckIntervals(std::string_view op, const Tensor& source, const Tensor& destination,
                            const std::vector<IntervalCopy>& intervals) {
  FSDP_RETURN_IF_ERROR(CheckFloats(op, "source", source));
  FSDP_RETURN_IF_ERROR(CheckFloats(op, "destination", destination));
  // All before the first copy, so that a wrong list writes nothing.
  for (size_t i = 0; i < intervals.size(); ++i) {
    const IntervalCopy& copy = intervals[i];
    if (Has(source, copy.from, copy.numel) && Has(destination, copy.to, copy.numel)) continue;
    return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": interval ", i, " goes from ", copy.from, " to ",
                                                   copy.to, ", ", copy.numel, " elements; source has ", source.numel(),
                                                   ", destination ", destination.numel()));
  }
  return absl::OkStatus();
}

absl::Status CheckCopy(const Tensor& source, const Tensor& destination) {
  FSDP_RETURN_IF_ERROR(CheckDefined("copy_tensors", "source", source));
  FSDP_RETURN_IF_ERROR(CheckDefined("copy_tensors", "destination", destination));
  if (source.nbytes() == destination.nbytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("copy_tensors: source has ", source.nbytes(), " bytes, destination has ", destination.nbytes()));
}

absl::Status CheckClipOperands(const Tensor& squared_norms, const Tensor& result) {
  FSDP_RETURN_IF_ERROR(CheckFloat32("clip_coefficient", "squared_norms", squared_norms, -1));
  return CheckFloat32("clip_coefficient", "result", result, 2);
}

}  // namespace fsdp
