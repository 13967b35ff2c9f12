// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/all_ranks.h"

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/coalesced_calls.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

void BroadcastIn(ProcessGroup& group, absl::Span<const Tensor> tensors, Stream& stream) {
  const CoalescedCalls coalesced(group);
  for (const Tensor& t : tensors) group.Broadcast(t, /*root=*/0, stream);
}

}  // namespace

AllRanks::AllRanks(const ShardGroups& groups) : groups_(groups) {}

int AllRanks::rank() const {
  if (groups_.all() != nullptr) return groups_.all()->rank();
  return groups_.replicate()->rank() * groups_.shard()->size() + groups_.shard()->rank();
}

int AllRanks::size() const {
  if (groups_.all() != nullptr) return groups_.all()->size();
  return groups_.replicate()->size() * groups_.shard()->size();
}

absl::StatusOr<std::vector<std::string>> AllRanks::GatherBlobs(std::string_view blob) const {
  if (groups_.all() != nullptr) return groups_.all()->GatherBlobs(blob);
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> shard, groups_.shard()->GatherBlobs(blob));
  const std::vector<std::uint8_t> packed = nlohmann::json::to_msgpack(nlohmann::json(shard));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> packs,
                        groups_.replicate()->GatherBlobs(std::string(packed.begin(), packed.end())));
  std::vector<std::string> all;
  for (const std::string& pack : packs) {
    const nlohmann::json part = nlohmann::json::from_msgpack(pack, /*strict=*/true, /*allow_exceptions=*/false);
    if (!part.is_array() || part.size() != shard.size()) {
      return absl::FailedPreconditionError("shard groups of one model differ in size");
    }
    for (const nlohmann::json& one : part) all.push_back(one.get<std::string>());
  }
  return all;
}

void AllRanks::BroadcastFromFirst(absl::Span<const Tensor> tensors, Stream& stream) const {
  if (groups_.all() != nullptr) return BroadcastIn(*groups_.all(), tensors, stream);
  // The first of each shard group has them after the first broadcasts, everybody after the second.
  BroadcastIn(*groups_.replicate(), tensors, stream);
  BroadcastIn(*groups_.shard(), tensors, stream);
}

}  // namespace fsdp
