// SPDX-License-Identifier: Apache-2.0
#include "fsdp/options.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace fsdp {
namespace {

template <typename Enum>
using NameTable = absl::Span<const std::pair<Enum, std::string_view>>;

constexpr std::pair<ShardingStrategy, std::string_view> kStrategies[] = {
    {ShardingStrategy::kFullShard, "full_shard"},
    {ShardingStrategy::kShardGradOp, "shard_grad_op"},
    {ShardingStrategy::kNoShard, "no_shard"},
};

constexpr std::pair<BackwardPrefetch, std::string_view> kPrefetches[] = {
    {BackwardPrefetch::kBackwardPre, "pre"},
    {BackwardPrefetch::kBackwardPost, "post"},
    {BackwardPrefetch::kNone, "none"},
};

template <typename Enum>
std::string_view NameOf(NameTable<Enum> table, Enum value) {
  for (const auto& [candidate, name] : table) {
    if (candidate == value) return name;
  }
  return "unknown";
}

template <typename Enum>
absl::StatusOr<Enum> Parse(NameTable<Enum> table, const char* what, std::string_view text) {
  std::string known;
  for (const auto& [value, name] : table) {
    if (name == text) return value;
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(name));
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " \"", std::string(text), "\" is not one of: ", known));
}

}  // namespace

std::string_view ShardingStrategyName(ShardingStrategy strategy) {
  return NameOf<ShardingStrategy>(kStrategies, strategy);
}

absl::StatusOr<ShardingStrategy> ParseShardingStrategy(std::string_view name) {
  return Parse<ShardingStrategy>(kStrategies, "sharding strategy", name);
}

std::string_view BackwardPrefetchName(BackwardPrefetch prefetch) {
  return NameOf<BackwardPrefetch>(kPrefetches, prefetch);
}

absl::StatusOr<BackwardPrefetch> ParseBackwardPrefetch(std::string_view name) {
  return Parse<BackwardPrefetch>(kPrefetches, "backward prefetch", name);
}

}  // namespace fsdp
