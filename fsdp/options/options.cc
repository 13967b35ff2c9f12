// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/options/options.h"

#include "fsdp/fsdp/options/enum_names.h"
#include "fsdp/fsdp/options/unit_options.h"

namespace fsdp {
namespace {

constexpr EnumName<BackwardPrefetch> kPrefetches[] = {
    {BackwardPrefetch::kBackwardPre, "pre"},
    {BackwardPrefetch::kBackwardPost, "post"},
    {BackwardPrefetch::kNone, "none"},
};

constexpr EnumName<ShardingStrategy> kStrategies[] = {
    {ShardingStrategy::kFullShard, "full_shard"},
    {ShardingStrategy::kShardGradOp, "shard_grad_op"},
    {ShardingStrategy::kNoShard, "no_shard"},
    {ShardingStrategy::kHybridShard, "hybrid_shard"},
    {ShardingStrategy::kHybridShardZero2, "hybrid_shard_zero2"},
};

}  // namespace

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
