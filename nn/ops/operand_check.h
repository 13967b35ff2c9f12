// SPDX-License-Identifier: Apache-2.0
//
// OperandCheck: keeps the first fault of a kernel's operands, for a kernel that then either runs or fails its stream.
//
//   OperandCheck check("layer norm");
//   check.FloatDType({x, weight, bias, out});
//   check.Numel("mean", mean, DType::kFloat64, rows);
//   if (check.FailsOn(stream)) return;
#ifndef FSDP_NN_OPS_OPERAND_CHECK_H_
#define FSDP_NN_OPS_OPERAND_CHECK_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Shapes, dtypes and devices only; it reads no element. For one kernel call on one thread.
class OperandCheck {
 public:
  // `kernel` names it in messages and must outlive this.
  explicit OperandCheck(std::string_view kernel) : kernel_(kernel) {}

  // All are float32, all bfloat16, or all float16.
  void FloatDType(std::initializer_list<const Tensor*> operands);

  // `t` has this many elements, and this dtype if one is given.
  void Numel(std::string_view name, const Tensor& t, int64_t numel);
  void Numel(std::string_view name, const Tensor& t, DType dtype, int64_t numel);

  // `t` has two dimensions, and this many columns if a number is given.
  void Matrix(std::string_view name, const Tensor& t);
  void Matrix(std::string_view name, const Tensor& t, int64_t cols);

  // Operands may have padding between their rows, which is otherwise refused. Call before the operands are named.
  // Kernels of the host never take padding.
  void AllowPaddedRows() { allows_padded_rows_ = true; }

  // Any other rule: `problem` describes the fault.
  void Fail(std::string_view problem);

  // The first failure; OK if all checks passed. Checks after a failure do nothing.
  const absl::Status& status() const { return status_; }

  // If there was a failure, or an operand that was named is on another device than `stream`, puts it on `stream` in
  // place of the kernel and returns true: the caller then returns.
  bool FailsOn(Stream& stream);

 private:
  struct Place {
    std::string_view operand;
    DeviceId device;
  };

  void Note(std::string_view name, const Tensor& t);
  void RecordPlace(std::string_view name, const Tensor& t);
  void CheckPlaces(const DeviceId& wanted);

  std::string_view kernel_;
  bool allows_padded_rows_ = false;
  std::string padded_;  // the first operand with padded rows
  absl::Status status_;
  // The first operand, and the first one on another device than it: enough to find an operand that is not on the
  // stream's device.
  std::optional<Place> first_, other_;
};

}  // namespace fsdp

#endif  // FSDP_NN_OPS_OPERAND_CHECK_H_
