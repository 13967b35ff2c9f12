// SPDX-License-Identifier: Apache-2.0
//
// Only the first failure is kept: later ones are often its consequences. An undefined tensor has no shape to print and
// fails as "undefined".
#include "fsdp/nn/ops/operand_check.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

void OperandCheck::FloatDType(std::initializer_list<const Tensor*> operands) {
  const DType wanted = (*operands.begin())->dtype();
  for (const Tensor* t : operands) {
    if (!status_.ok()) return;
    const bool known = wanted == DType::kFloat32 || wanted == DType::kBFloat16 || wanted == DType::kFloat16;
    if (t->dtype() != wanted || !known) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(std::string(kernel_), ": operands of dtype ", std::string(DTypeName(wanted)), " and ",
                       std::string(DTypeName(t->dtype())), ", wanted all float32, all bfloat16 or all float16"));
    }
  }
}

void OperandCheck::Numel(std::string_view name, const Tensor& t, int64_t numel) {
  // Noted before the check, so that padding and devices of every operand are known to FailsOn.
  Note(name, t);
  if (!status_.ok() || (t.defined() && t.numel() == numel)) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(std::string(kernel_), ": ", std::string(name), " ",
                                                    t.defined() ? t.shape().ToString() : "undefined", ", wanted ",
                                                    numel, " elements"));
}

void OperandCheck::Numel(std::string_view name, const Tensor& t, DType dtype, int64_t numel) {
  Numel(name, t, numel);
  if (!status_.ok() || t.dtype() == dtype) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(std::string(kernel_), ": ", std::string(name), " is ",
                                                    std::string(DTypeName(t.dtype())), ", wanted ",
                                                    std::string(DTypeName(dtype))));
}

void OperandCheck::Matrix(std::string_view name, const Tensor& t) {
  Note(name, t);
  if (!status_.ok() || (t.defined() && t.shape().rank() == 2)) return;
  status_ =
      absl::InvalidArgumentError(absl::StrCat(std::string(kernel_), ": ", std::string(name), " ",
                                              t.defined() ? t.shape().ToString() : "undefined", " is not a matrix"));
}

void OperandCheck::Matrix(std::string_view name, const Tensor& t, int64_t cols) {
  Matrix(name, t);
  if (!status_.ok() || t.shape().dim(1) == cols) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(std::string(kernel_), ": ", std::string(name), " ",
                                                    t.shape().ToString(), ", wanted ", cols, " columns"));
}

void OperandCheck::Fail(std::string_view problem) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(std::string(kernel_), ": ", std::string(problem)));
}

void OperandCheck::Note(std::string_view name, const Tensor& t) {
  RecordPlace(name, t);
  // Not a failure yet: FailsOn decides, because only some kernels, and only on GPUs, take padded rows.
  if (!t.is_contiguous() && padded_.empty()) {
    padded_ =
        absl::StrCat(std::string(name), " ", t.shape().ToString(), " has rows ", t.row_stride(), " elements apart");
  }
}

void OperandCheck::RecordPlace(std::string_view name, const Tensor& t) {
  if (!t.defined()) return;
  if (!first_.has_value()) {
    first_ = Place{name, t.device()};
  } else if (!other_.has_value() && t.device() != first_->device) {
    other_ = Place{name, t.device()};
  }
}

void OperandCheck::CheckPlaces(const DeviceId& wanted) {
  // If both places agree with the stream then all operands do: `other_` is the first that differs from `first_`.
  for (const std::optional<Place>& place : {first_, other_}) {
    if (!place.has_value() || place->device == wanted) continue;
    Fail(absl::StrCat(std::string(place->operand), " is on ", DeviceName(place->device), ", wanted ",
                      DeviceName(wanted), ", the device of the stream"));
  }
}

bool OperandCheck::FailsOn(Stream& stream) {
  CheckPlaces(stream.device().id());
  if (!padded_.empty() && (!allows_padded_rows_ || stream.device().type() == DeviceType::kCpu)) {
    Fail(absl::StrCat(padded_, ", wanted contiguous ones: copy it with Tape::Contiguous"));
  }
  if (status_.ok()) return false;
  // As a piece of work, so that the error comes in stream order.
  stream.Run([status = status_] { return status; });
  return true;
}

}  // namespace fsdp
