// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/options/options.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/option_check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/options/enum_names.h"
#include "fsdp/fsdp/options/fully_shard_options.h"
#include "fsdp/fsdp/options/unit_options.h"

namespace fsdp {
namespace {

constexpr EnumName<BackwardPrefetch> kPrefetches[] = {
    {BackwardPrefetch::kBackwardPre, "pre"},
    {BackwardPrefetch::kBackwardPost, "post"},
    {BackwardPrefetch::kNone, "none"},
};

// The names of flags and messages; a missing enumerator would be refused by CheckEnum.
constexpr EnumName<ShardingStrategy> kStrategies[] = {
    {ShardingStrategy::kFullShard, "full_shard"},
    {ShardingStrategy::kShardGradOp, "shard_grad_op"},
    {ShardingStrategy::kNoShard, "no_shard"},
    {ShardingStrategy::kHybridShard, "hybrid_shard"},
    {ShardingStrategy::kHybridShardZero2, "hybrid_shard_zero2"},
};

// Before anything is allocated, because kernels and collectives exist only for these dtypes.
absl::Status CheckDType(const char* name, const std::optional<DType>& dtype) {
  static constexpr DType kExpected[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  if (!dtype.has_value()) return absl::OkStatus();
  if (std::find(std::begin(kExpected), std::end(kExpected), *dtype) != std::end(kExpected)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", std::string(DTypeName(*dtype)), ": expected float64, float32, bfloat16 or float16"));
}

// `name` is the field, `type` its enumeration, of which `table` lists all values.
template <typename Enum>
absl::Status CheckEnum(absl::Span<const EnumName<Enum>> table, const char* name, const char* type, Enum value) {
  // An integer that a program cast to the enumeration may not be an enumerator.
  for (const auto& [known, text] : table) {
    if (known == value) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", static_cast<int>(value), ": expected an enumerator of ", type));
}

absl::Status CheckStrategy(ShardingStrategy strategy) {
  return CheckEnum<ShardingStrategy>(kStrategies, "sharding_strategy", "ShardingStrategy", strategy);
}

absl::Status CheckPrefetch(BackwardPrefetch prefetch) {
  return CheckEnum<BackwardPrefetch>(kPrefetches, "backward_prefetch", "BackwardPrefetch", prefetch);
}

}  // namespace

absl::Status Validate(const MixedPrecision& precision) {
  FSDP_RETURN_IF_ERROR(CheckDType("mixed_precision.param_dtype", precision.param_dtype));
  FSDP_RETURN_IF_ERROR(CheckDType("mixed_precision.reduce_dtype", precision.reduce_dtype));
  return CheckDType("mixed_precision.buffer_dtype", precision.buffer_dtype);
}

absl::Status Validate(const MixedPrecisionPolicy& policy) {
  FSDP_RETURN_IF_ERROR(CheckDType("mp_policy.param_dtype", policy.param_dtype));
  FSDP_RETURN_IF_ERROR(CheckDType("mp_policy.reduce_dtype", policy.reduce_dtype));
  return CheckDType("mp_policy.output_dtype", policy.output_dtype);
}

absl::Status Validate(const UnitOverrides& overrides) {
  if (overrides.sharding_strategy.has_value()) FSDP_RETURN_IF_ERROR(CheckStrategy(*overrides.sharding_strategy));
  if (overrides.backward_prefetch.has_value()) FSDP_RETURN_IF_ERROR(CheckPrefetch(*overrides.backward_prefetch));
  // A pair without a shard group cannot shard; a missing replicate group means one group.
  if (overrides.process_group.has_value() && overrides.process_group->shard == nullptr) {
    return absl::InvalidArgumentError("process_group has no shard group: expected a group of ranks");
  }
  return overrides.mixed_precision.has_value() ? Validate(*overrides.mixed_precision) : absl::OkStatus();
}

absl::Status Validate(const FsdpOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckStrategy(options.sharding_strategy));
  if (options.shard_group_size.has_value()) {
    FSDP_RETURN_IF_ERROR(CheckAtLeast1("shard_group_size", *options.shard_group_size));
  }
  FSDP_RETURN_IF_ERROR(CheckPrefetch(options.backward_prefetch));
  if (options.copy_engine_all_gather && !options.symm_mem_for_comm) {
    return absl::InvalidArgumentError(
        "copy_engine_all_gather is true, but symm_mem_for_comm is not: copy engines need its windows; expected both");
  }
  return Validate(options.mixed_precision);
}

// Refused, not ignored: the program would train with other groups than requested.
absl::Status CheckShardGroupSizeIsUsed(const FsdpOptions& options, bool hybrid) {
  if (hybrid || !options.shard_group_size.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("shard_group_size is ", *options.shard_group_size,
                                                 ", but no unit's sharding_strategy is hybrid_shard or "
                                                 "hybrid_shard_zero2: expected one of them, or no shard_group_size"));
}

absl::Status Validate(const FullyShardOptions& options) {
  for (size_t i = 0; i < options.ignored_params.size(); ++i) {
    if (options.ignored_params[i] != nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat("ignored_params[", i, "] is null: expected a parameter"));
  }
  return Validate(options.mp_policy);
}

std::string_view ShardingStrategyName(ShardingStrategy strategy) {
  return NameOf<ShardingStrategy>(kStrategies, strategy);
}

absl::StatusOr<ShardingStrategy> ParseShardingStrategy(std::string_view name) {
  return ParseEnum<ShardingStrategy>(kStrategies, "sharding strategy", name);
}

std::string_view BackwardPrefetchName(BackwardPrefetch prefetch) {
  return NameOf<BackwardPrefetch>(kPrefetches, prefetch);
}

absl::StatusOr<BackwardPrefetch> ParseBackwardPrefetch(std::string_view name) {
  return ParseEnum<BackwardPrefetch>(kPrefetches, "backward prefetch", name);
}

}  // namespace fsdp
