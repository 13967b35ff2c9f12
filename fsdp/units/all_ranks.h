// SPDX-License-Identifier: Apache-2.0
//
// AllRanks: every rank of a model as if it were one group, for what concerns all of them: agreement, and values that
// rank 0 alone has. A model that was given one group or a mesh has such a group; of a pair of groups (shard, replicate)
// this goes through one and then the other. Rank = replicate rank * shard group's size + shard rank.
#ifndef FSDP_FSDP_UNITS_ALL_RANKS_H_
#define FSDP_FSDP_UNITS_ALL_RANKS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/units/shard_groups.h"

namespace fsdp {

class AllRanks {
 public:
  // `groups` must outlive it.
  explicit AllRanks(const ShardGroups& groups);

  int rank() const;
  int size() const;

  // Every rank's blob, by rank. Collective; blocks.
  absl::StatusOr<std::vector<std::string>> GatherBlobs(std::string_view blob) const;

  // All of `tensors` become rank 0's, by one exchange. Collective.
  void BroadcastFromFirst(absl::Span<const Tensor> tensors, Stream& stream) const;

  // As fsdp::AgreeOn.
  absl::Status AgreeOn(const absl::Status& mine) const { return groups_.AgreeOn(mine); }

 private:
  const ShardGroups& groups_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_ALL_RANKS_H_
