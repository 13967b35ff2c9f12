// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/host_floats.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = 1024;  // random numbers at a time

}  // namespace

absl::StatusOr<HostFloats> HostFloats::Of(const Tensor& tensor) {
  HostFloats floats;
  floats.memory_ = tensor;
  if (tensor.dtype() == DType::kFloat32) return floats;
  floats.copy_.emplace(tensor.numel());
  FSDP_RETURN_IF_ERROR(Convert(tensor.dtype(), tensor.data(), DType::kFloat32, floats.copy_->data(), tensor.numel()));
  return floats;
}

absl::Status HostFloats::Store(const std::optional<StochasticRounding>& rounding, const RoundedTensor& tensor) const {
  if (!copy_) return absl::OkStatus();
  const int64_t numel = memory_.numel();
  if (memory_.dtype() != DType::kBFloat16 || !rounding) {
    return Convert(DType::kFloat32, copy_->data(), memory_.dtype(), memory_.data(), numel);
  }
  auto* const bits = memory_.data_as<uint16_t>();
  std::vector<uint32_t> numbers(std::min(numel, kBlock));
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t count = std::min(numel - begin, kBlock);
    const absl::Span<uint32_t> some(numbers.data(), count);
    if (tensor.is_whole) {
      rounding->FillWhole(tensor.number, begin, some);
    } else {
      rounding->Fill(tensor.number, begin, some);
    }
    for (int64_t i = 0; i < count; ++i) bits[begin + i] = RoundAtRandom((*copy_)[begin + i], numbers[i]);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
