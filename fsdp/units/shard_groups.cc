// SPDX-License-Identifier: Apache-2.0
//
// A rank of a hybrid model is in two groups. With shard_group_size 2, four ranks are
//
//   shard groups       {0, 1} {2, 3}     consecutive ranks, so that all-gathers stay within a host
//   replicate groups   {0, 2} {1, 3}     ranks of equal place in their shard group, which hold equal shards
//
// Agreement and broadcasts over all ranks go through one group and then the other if no group of all ranks was given:
// after the first step every member of the second group has the first group's result, so the second step completes it.
#include "fsdp/fsdp/units/shard_groups.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/coalesced_calls.h"
#include "fsdp/collectives/group_hosts.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

absl::Status CheckEqualIn(ProcessGroup& group, const std::string& blob, std::string_view what) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, group.AllGatherObject(blob));
  // Every rank has all blobs, so all of them return the same error.
  for (int rank = 0; rank < group.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(what), " of rank 0:\n", all[0], "of rank ", rank, ":\n", all[rank]));
  }
  return absl::OkStatus();
}

void BroadcastIn(ProcessGroup& group, absl::Span<const Tensor> tensors, Stream& stream) {
  const CoalescedCalls coalesced(group);
  for (const Tensor& t : tensors) group.Broadcast(t, /*root=*/0, stream);
}

}  // namespace

ShardGroups::ShardGroups(std::shared_ptr<const DeviceMesh> mesh) : mesh_(std::move(mesh)), from_mesh_(true) {
  if (mesh_ == nullptr) return;  // Validate reports it
  all_ = mesh_->all();
  if (mesh_->ndim() != 2) return;
  replicate_ = mesh_->group(0);
  shard_ = mesh_->group(1);
}

absl::Status ShardGroups::Validate() const {
  const char* null = nullptr;
  if (!from_pair_ && all_ == nullptr) null = from_mesh_ ? "device mesh" : "process group";
  if (from_pair_ && replicate_ == nullptr) null = "replicate group";
  if (from_pair_ && shard_ == nullptr) null = "shard group";
  if (null == nullptr && mesh_ != nullptr && mesh_->ndim() > 2) {
    return absl::InvalidArgumentError(absl::StrCat("device mesh ", mesh_->ToString(), " has ", mesh_->ndim(),
                                                   " dimensions: expected one (shard) or two (replicate, shard); "
                                                   "DeviceMesh::Submesh takes them from a larger mesh"));
  }
  if (null == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", null, " is null: expected one group, a pair of groups (shard, replicate), or a mesh"));
}

absl::Status ShardGroups::UseTensorParallelism() {
  const std::string given = mesh_ == nullptr ? "no mesh" : absl::StrCat("mesh ", mesh_->ToString());
  if (mesh_ != nullptr) {
    const DeviceMesh& root = mesh_->root();
    // By names, since a submesh shares the root's.
    std::vector<int> others;
    for (int dim = 0; dim < root.ndim(); ++dim) {
      const std::vector<std::string>& mine = mesh_->names();
      if (std::count(mine.begin(), mine.end(), root.names()[dim]) == 0) others.push_back(dim);
    }
    if (others.size() == 1) {
      tensor_parallel_ = root.group(others[0]);
      everyone_ = root.all();
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a model with layers that are parallel by tensors was given ", given,
                   ": expected a submesh that leaves out one dimension of its mesh, as {\"dp\"} of {\"dp\", \"tp\"}"));
}

absl::Status ShardGroups::SplitForHybrid(int shard_group_size) {
  if (all_ == nullptr || has_hybrid()) {
    return absl::InvalidArgumentError("shard_group_size: the shard and replicate groups are given already");
  }
  if (shard_group_size < 1 || all_->size() % shard_group_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard_group_size ", shard_group_size, " does not divide the group's ", all_->size(), " ranks"));
  }
  // Every rank calls both splits, in this order: Split is collective.
  const int block = all_->rank() / shard_group_size;
  const int place = all_->rank() % shard_group_size;
  FSDP_ASSIGN_OR_RETURN(shard_, all_->Split(/*color=*/block, /*key=*/place));
  FSDP_ASSIGN_OR_RETURN(replicate_, all_->Split(/*color=*/place, /*key=*/block));
  return absl::OkStatus();
}

absl::Status ShardGroups::SplitByHosts() {
  // Collective: a rank learns the other ranks' hosts.
  const absl::StatusOr<int> ranks = RanksPerHost(*all_);
  if (!ranks.ok()) return Annotate(ranks.status(), "hybrid sharding without a shard_group_size");
  return SplitForHybrid(*ranks);
}

absl::StatusOr<UnitGroups> ShardGroups::Of(ShardingStrategy strategy) const {
  if (IsHybrid(strategy)) {
    if (!has_hybrid()) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(ShardingStrategyName(strategy)),
                       " needs a shard group and a replicate group: give the two as a pair, or a mesh with 2 "
                       "dimensions, or one group and an auto_wrap_policy"));
    }
    // A shard group of one would only copy; the unit is replicated instead.
    if (shard_->size() == 1) return UnitGroups{nullptr, replicate_};
    return UnitGroups{shard_, replicate_};
  }
  if (all_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(ShardingStrategyName(strategy)),
        " shards over all ranks, but a shard group and a replicate group are given: give one group or a mesh"));
  }
  if (strategy == ShardingStrategy::kNoShard || all_->size() == 1) return UnitGroups{nullptr, all_};
  return UnitGroups{all_, nullptr};
}

const std::shared_ptr<ProcessGroup>& ShardGroups::RootGroup(ShardingStrategy root_strategy) const {
  return all_ == nullptr || (IsHybrid(root_strategy) && has_hybrid()) ? shard_ : all_;
}

absl::Status ShardGroups::AllReduceStatus(const absl::Status& mine) const {
  if (everyone() != nullptr) return fsdp::AllReduceStatus(*everyone(), mine);
  // The shard group first: its result, which may be another rank's error, then goes to all replicas.
  return fsdp::AllReduceStatus(*replicate_, fsdp::AllReduceStatus(*shard_, mine));
}

absl::Status ShardGroups::CheckEqual(const std::string& blob, std::string_view what) const {
  if (everyone() != nullptr) return CheckEqualIn(*everyone(), blob, what);
  FSDP_RETURN_IF_ERROR(CheckEqualIn(*shard_, blob, what));
  return CheckEqualIn(*replicate_, blob, what);
}

AllRanks::AllRanks(const ShardGroups& groups) : groups_(groups) {}

int AllRanks::rank() const {
  if (groups_.everyone() != nullptr) return groups_.everyone()->rank();
  return groups_.replicate()->rank() * groups_.shard()->size() + groups_.shard()->rank();
}

int AllRanks::size() const {
  if (groups_.everyone() != nullptr) return groups_.everyone()->size();
  return groups_.replicate()->size() * groups_.shard()->size();
}

absl::StatusOr<std::vector<std::string>> AllRanks::AllGatherObject(std::string_view blob) const {
  return GatherBy(&ProcessGroup::AllGatherObject, blob);
}

absl::StatusOr<std::vector<std::string>> AllRanks::AllGatherObjectUnordered(std::string_view blob) const {
  return GatherBy(&ProcessGroup::AllGatherObjectUnordered, blob);
}

absl::StatusOr<std::vector<std::string>> AllRanks::GatherBy(Gather gather, std::string_view blob) const {
  if (groups_.everyone() != nullptr) return ((*groups_.everyone()).*gather)(blob);
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> shard, ((*groups_.shard()).*gather)(blob));
  // The second gather sends one blob for each shard group, so the lists of the first are packed.
  const std::vector<std::uint8_t> packed = nlohmann::json::to_msgpack(nlohmann::json(shard));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> packs,
                        ((*groups_.replicate()).*gather)(std::string(packed.begin(), packed.end())));
  std::vector<std::string> all;
  for (const std::string& pack : packs) {
    const nlohmann::json part = nlohmann::json::from_msgpack(pack, /*strict=*/true, /*allow_exceptions=*/false);
    if (!part.is_array() || part.size() != shard.size()) {
      return absl::FailedPreconditionError("shard groups of one model differ in size");
    }
    for (const nlohmann::json& packed_blob : part) all.push_back(packed_blob.get<std::string>());
  }
  return all;
}

void AllRanks::BroadcastFromFirst(absl::Span<const Tensor> tensors, Stream& stream) const {
  if (groups_.everyone() != nullptr) return BroadcastIn(*groups_.everyone(), tensors, stream);
  // After the first broadcast rank 0 of each shard group has the tensors, after the second every rank.
  BroadcastIn(*groups_.replicate(), tensors, stream);
  BroadcastIn(*groups_.shard(), tensors, stream);
}

}  // namespace fsdp
