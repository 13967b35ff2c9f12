// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/device_model.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/tensor/float_dtype.h"

namespace fsdp {
namespace {

// Peaks, memory and its speed are from NVIDIA's data sheets; the H100 of 500 W is the one of torchtitan's page, with
// HBM2e. Rings: NCCL's count of 20 and 20.6 GB/s for each of 12 and 18 links (src/graph/topo.h). Attention:
// FlashAttention-2 (arXiv 2307.08691), forward and backward, causal, heads of 128.
constexpr double kA100Attention = 190e12;
constexpr double kH100Attention = 330e12;

// The share of the memory bandwidth that kernels reach that only move memory, and the share of the multiprocessors that
// NCCL's kernels occupy: 24 of the 108 of an A100. Assumptions, the same for all devices here.
constexpr double kMemoryEfficiency = 0.8;
constexpr double kCollectiveShare = 0.2;

// The shares are those fitted for classes of published_runs.json: torchtitan's A100, IBM's H100, torchtitan's H100 of
// 500 W, compiled and in float8, torchtitan's H200 in float8. The H100 in float8 uses the H200's share, and the H200 in
// bfloat16 the H100's: they are the same processor.
struct Preset {
  const char* name;
  double float32, bfloat16, float8, attention, memory_bandwidth, local_bandwidth;
  int64_t memory_bytes;
  double achievable_bfloat16, achievable_float8;
};
constexpr Preset kPresets[] = {
    {"a100", 19.5e12, 312e12, 0, kA100Attention, 2.039e12, 240e9, 80'000'000'000, 0.64, 0},
    {"h100", 67e12, 989e12, 1979e12, kH100Attention, 3.35e12, 370.8e9, 80'000'000'000, 0.52, 0.43},
    {"h100-500w", 67e12, 989e12, 1979e12, kH100Attention, 2.4e12, 370.8e9, 96'000'000'000, 0.46, 0.29},
    {"h200", 67e12, 989e12, 1979e12, kH100Attention, 4.8e12, 370.8e9, 141'000'000'000, 0.52, 0.43},
};

// No published row is in float32, so nothing is fitted there.
constexpr double kFloat32Share = 0.8;

}  // namespace

absl::StatusOr<ComputePrecision> ParseComputePrecision(std::string_view name) {
  const std::string known = FloatDTypeName(name);
  if (known == "float32") return ComputePrecision::kFloat32;
  if (known == "bfloat16") return ComputePrecision::kBFloat16;
  if (known == "float8") return ComputePrecision::kFloat8;
  return absl::InvalidArgumentError(
      absl::StrCat("dtype \"", std::string(name), "\": expected float32, bfloat16 or float8"));
}

absl::StatusOr<DType> ParseReduceDType(std::string_view name) {
  const absl::StatusOr<DType> dtype = ParseFloatDType(name);
  if (dtype.ok() && (*dtype == DType::kFloat32 || *dtype == DType::kBFloat16)) return dtype;
  return absl::InvalidArgumentError(
      absl::StrCat("--reduce_dtype=", std::string(name), ": expected float32 or bfloat16"));
}

double DeviceModel::PeakFlops(ComputePrecision precision) const {
  switch (precision) {
    case ComputePrecision::kFloat32:
      return float32_flops;
    case ComputePrecision::kBFloat16:
      return bfloat16_flops;
    case ComputePrecision::kFloat8:
      return float8_flops;
  }
  return 0;
}

absl::StatusOr<DeviceModel> DevicePreset(std::string_view name, ComputePrecision precision) {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
    if (name != preset.name) continue;
    if (precision == ComputePrecision::kFloat8 && preset.float8 == 0) {
      return absl::InvalidArgumentError(absl::StrCat("device ", preset.name, " has no float8, wanted another dtype"));
    }
    return DeviceModel{.name = preset.name,
                       .float32_flops = preset.float32,
                       .bfloat16_flops = preset.bfloat16,
                       .float8_flops = preset.float8,
                       .attention_flops = preset.attention,
                       .memory_bandwidth = kMemoryEfficiency * preset.memory_bandwidth,
                       .local_bandwidth = preset.local_bandwidth,
                       .memory_bytes = preset.memory_bytes,
                       .collective_share = kCollectiveShare,
                       .achievable = precision == ComputePrecision::kFloat8     ? preset.achievable_float8
                                     : precision == ComputePrecision::kBFloat16 ? preset.achievable_bfloat16
                                                                                : kFloat32Share};
  }
  return absl::NotFoundError(
      absl::StrCat("no device \"", std::string(name), "\"; there are ", absl::StrJoin(names, ", ")));
}

double SecondsOf(const UnitWork& work, const DeviceModel& device, ComputePrecision precision) {
  // The three kinds of work add up: kernels run one after the other on a stream.
  return work.matmul_flops / (device.PeakFlops(precision) * device.achievable) +
         work.attention_flops / device.attention_flops + work.traffic_bytes / device.memory_bandwidth;
}

}  // namespace fsdp
