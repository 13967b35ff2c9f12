// SPDX-License-Identifier: Apache-2.0
//
// HostFloats: a tensor in host memory as float32 numbers, for steps that compute in float32: its own memory, or, of
// bfloat16 and float16, a copy that Store rounds back.
#ifndef FSDP_OPTIM_HOST_FLOATS_H_
#define FSDP_OPTIM_HOST_FLOATS_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/optim/stochastic_rounding.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Which of a parameter's tensors it is, for StochasticRounding.
struct RoundedTensor {
  int number = 0;         // 0: the parameter; else one more than its state's number
  bool is_whole = false;  // on every rank
};

// Movable; one thread. The tensor keeps its memory alive.
class HostFloats final {
 public:
  HostFloats() = default;  // of no tensor: data() is null

  // The numbers of `tensor` as they are now. kInvalidArgument if a conversion is not possible.
  static absl::StatusOr<HostFloats> Of(const Tensor& tensor);

  float* data() { return copy_ ? copy_->data() : static_cast<float*>(memory_.defined() ? memory_.data() : nullptr); }
  const float* data() const { return const_cast<HostFloats*>(this)->data(); }

  // Writes changed numbers to the tensor. To bfloat16 by `rounding`, if it is set, else to the nearest.
  absl::Status Store(const std::optional<StochasticRounding>& rounding, const RoundedTensor& tensor) const;

 private:
  Tensor memory_;
  std::optional<std::vector<float>> copy_;  // unset: memory_ is float32
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_HOST_FLOATS_H_
