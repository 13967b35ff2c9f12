// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/options/options.h"

#include "fsdp/fsdp/options/enum_names.h"

namespace fsdp {
namespace {

constexpr EnumName<BackwardPrefetch> kPrefetches[] = {
    {BackwardPrefetch::kBackwardPre, "pre"},
    {BackwardPrefetch::kBackwardPost, "post"},
    {BackwardPrefetch::kNone, "none"},
};

}  // namespace

std::string_view BackwardPrefetchName(BackwardPrefetch prefetch) {
  return NameOf<BackwardPrefetch>(kPrefetches, prefetch);
}

absl::StatusOr<BackwardPrefetch> ParseBackwardPrefetch(std::string_view name) {
  return ParseEnum<BackwardPrefetch>(kPrefetches, "backward prefetch", name);
}

}  // namespace fsdp
