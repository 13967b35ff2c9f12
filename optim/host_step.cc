// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/host_step.h"

#include <cstddef>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {

bool Skips(const TensorExtras& extras) {
  return extras.found_inf.defined() && *extras.found_inf.data_as<const float>() != 0;
}

absl::Status RefreshCopy(const Tensor& data, const Tensor& copy) {
  if (!copy.defined()) return absl::OkStatus();
  return Convert(data.dtype(), data.data(), copy.dtype(), copy.data(), data.numel());
}

absl::StatusOr<std::vector<float>> GradientOf(const ShardedParameter& parameter, const TensorExtras& extras) {
  const Tensor& grad = parameter.grad;
  std::vector<float> values(grad.numel());
  FSDP_RETURN_IF_ERROR(Convert(grad.dtype(), grad.data(), DType::kFloat32, values.data(), grad.numel()));
  const float factor = extras.grad_factor.defined() ? *extras.grad_factor.data_as<const float>() : 1;
  if (factor == 1) return values;
  for (float& value : values) value *= factor;
  if (grad.dtype() == DType::kFloat32) return values;
  std::vector<std::byte> rounded(grad.nbytes());
  FSDP_RETURN_IF_ERROR(Convert(DType::kFloat32, values.data(), grad.dtype(), rounded.data(), grad.numel()));
  FSDP_RETURN_IF_ERROR(Convert(grad.dtype(), rounded.data(), DType::kFloat32, values.data(), grad.numel()));
  return values;
}

float Lerp(float start, float end, float weight) {
  const float difference = end - start;
  return weight < 0.5f ? start + weight * difference : end - difference * (1 - weight);
}

}  // namespace fsdp
