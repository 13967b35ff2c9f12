// SPDX-License-Identifier: Apache-2.0
//
// DeviceModel: the speed of a device in the few numbers that determine a unit's time: matrix products at a share of the
// peak, attention at its own rate, and everything else at the speed of memory.
#ifndef FSDP_TOOLS_SIMULATION_DEVICE_MODEL_H_
#define FSDP_TOOLS_SIMULATION_DEVICE_MODEL_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// The operands of the matrix products of linear layers. With kFloat8, attention, norms and the loss still have 16 bits,
// and so have parameters and gradients.
enum class ComputePrecision : uint8_t { kFloat32, kBFloat16, kFloat8 };

// "float32", "bfloat16", "float8", or another name of the first two, such as "bf16" (ParseFloatDType).
absl::StatusOr<ComputePrecision> ParseComputePrecision(std::string_view name);

// The dtype in which gradients are reduced: float32 or bfloat16, by any name.
absl::StatusOr<DType> ParseReduceDType(std::string_view name);

// FLOP/s and bytes/s.
struct DeviceModel {
  std::string name;
  double float32_flops = 0;  // peaks of matrix products, dense
  double bfloat16_flops = 0;
  double float8_flops = 0;      // 0: the device has no float8
  double attention_flops = 0;   // achieved by a fused attention, forward and backward together
  double memory_bandwidth = 0;  // achieved
  double local_bandwidth = 0;   // of a ring within a host
  int64_t memory_bytes = 0;

  // The share of the device that a collective takes from computation: its kernels occupy multiprocessors.
  double collective_share = 0;

  // The share of the peak that matrix products achieve: the only fitted number, for each device and precision.
  double achievable = 1;

  // The peak of matrix products; 0 if the device lacks the precision.
  double PeakFlops(ComputePrecision precision) const;
};

// "a100", "h100", "h100-500w", "h200"; kNotFound lists them. docs/simulate.md has the sources of the numbers.
absl::StatusOr<DeviceModel> DevicePreset(std::string_view name, ComputePrecision precision);

// The work of one kind of pass through one unit.
struct UnitWork {
  double matmul_flops = 0;
  double attention_flops = 0;
  double traffic_bytes = 0;  // of everything else, read and written

  UnitWork operator*(double times) const {
    return {matmul_flops * times, attention_flops * times, traffic_bytes * times};
  }
  UnitWork operator+(const UnitWork& other) const {
    return {matmul_flops + other.matmul_flops, attention_flops + other.attention_flops,
            traffic_bytes + other.traffic_bytes};
  }
};

double SecondsOf(const UnitWork& work, const DeviceModel& device, ComputePrecision precision);

}  // namespace fsdp

#endif  // FSDP_TOOLS_SIMULATION_DEVICE_MODEL_H_
