// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/optimizer_value.h"

#include <cstdint>
#include <cstring>

namespace fsdp {
namespace {

template <typename T>
TorchOptimizerState Scalar(DType dtype, T value) {
  TorchNumber number;
  static_assert(sizeof(value) <= sizeof(number.bytes));
  std::memcpy(number.bytes.data(), &value, sizeof(value));
  return {.leaf = {number}, .dtype = dtype, .shape = {}};
}

}  // namespace

TorchOptimizerState OptimizerValue(const StateKey& key, const PythonJson& json) {
  if (json.is_boolean()) return Scalar(DType::kBool, static_cast<uint8_t>(json.get<bool>()));
  const bool is_beyond = json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX};
  if (json.is_number_integer() && !is_beyond) {
    const auto value = json.get<int64_t>();
    const auto as_float = static_cast<float>(value);
    constexpr int64_t kExact = int64_t{1} << 24;
    // 2^24 is the first integer whose successor float32 cannot hold.
    if (key.state == "step" && value >= 0 && value <= kExact) return Scalar(DType::kFloat32, as_float);
    return Scalar(DType::kInt64, value);
  }
  if (json.is_number_float()) {
    const auto value = json.get<double>();
    if (key.state == "step" && static_cast<double>(static_cast<float>(value)) == value) {
      return Scalar(DType::kFloat32, static_cast<float>(value));
    }
    return Scalar(DType::kFloat64, value);
  }
  return {.value = json};
}

}  // namespace fsdp
