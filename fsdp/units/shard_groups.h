// SPDX-License-Identifier: Apache-2.0
//
// ShardGroups: the ranks over which a model is sharded and those over which it is replicated. Converts implicitly from
// one group, a pair, or a mesh.
//
//   Wrap(module, group, options);                        // one group; hybrid groups by shard_group_size, or by hosts
//   Wrap(module, std::pair(shard, replicate), options);  // hybrid: two given groups
//   Wrap(module, mesh, options);                         // 1-D: shard; 2-D: dimension 0 replicates, 1 shards
//
// The mesh may be a submesh. If the model has parallel layers, the one dimension that it leaves out is tensor
// parallelism's: ranks along it hold different parts of those layers' parameters, and copies of all others.
#ifndef FSDP_FSDP_UNITS_SHARD_GROUPS_H_
#define FSDP_FSDP_UNITS_SHARD_GROUPS_H_

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/options/unit_options.h"

namespace fsdp {

// The groups of one unit. Parameters are cut over `shard`; gradients are summed over it, then over `replicate`.
struct UnitGroups {
  std::shared_ptr<ProcessGroup> shard;      // null: every rank has whole parameters
  std::shared_ptr<ProcessGroup> replicate;  // null: shards have no copies on other ranks

  // The ranks that share tensor-parallel layers; null: the model has no such layers.
  std::shared_ptr<ProcessGroup> tensor_parallel = nullptr;

  int tensor_parallel_size() const { return tensor_parallel ? tensor_parallel->size() : 1; }
  int tensor_parallel_rank() const { return tensor_parallel ? tensor_parallel->rank() : 0; }

  int shard_world_size() const { return shard ? shard->size() : 1; }
  int shard_rank() const { return shard ? shard->rank() : 0; }

  // Ranks whose gradients are averaged.
  int data_parallel_size() const { return shard_world_size() * (replicate ? replicate->size() : 1); }
};

class ShardGroups {
 public:
  template <std::derived_from<ProcessGroup> G>
  ShardGroups(std::shared_ptr<G> group) : all_(std::move(group)) {}  // NOLINT: implicit on purpose

  template <std::derived_from<ProcessGroup> S, std::derived_from<ProcessGroup> R>
  ShardGroups(std::pair<std::shared_ptr<S>, std::shared_ptr<R>> shard_and_replicate)  // NOLINT
      : shard_(std::move(shard_and_replicate.first)),
        replicate_(std::move(shard_and_replicate.second)),
        from_pair_(true) {}

  ShardGroups(std::shared_ptr<const DeviceMesh> mesh);  // NOLINT

  // kInvalidArgument, naming it, for a group or mesh that is null, and for a mesh of more than two dimensions. No other
  // function may be called then.
  absl::Status Validate() const;

  // Splits the one group into blocks of `shard_group_size` consecutive ranks that shard, ranks of equal place
  // replicating. kInvalidArgument unless there is only one group and its size is a multiple. Collective; blocks.
  absl::Status SplitForHybrid(int shard_group_size);

  // The same, with shard groups of the ranks of a host and replication over hosts, as PyTorch does by the number of
  // devices; on one host all ranks shard, and each is its own replicate group. Also returns the errors of RanksPerHost.
  // Collective; blocks.
  absl::Status SplitByHosts();

  // For a model with parallel layers: from now on the dimension that the submesh leaves out is tensor_parallel(), and
  // everyone() contains every rank of its root mesh. kInvalidArgument unless it leaves out exactly one.
  absl::Status UseTensorParallelism();

  // True if one group was given and has not been split: the two functions above may be called.
  bool is_one_group() const { return all_ != nullptr && !from_mesh_ && !has_hybrid(); }

  // True when hybrid strategies have their two groups.
  bool has_hybrid() const { return replicate_ != nullptr; }

  // The groups of a unit with this strategy; kInvalidArgument if they were not given.
  absl::StatusOr<UnitGroups> Of(ShardingStrategy strategy) const;

  // The group that PyTorch calls the root's process group: all ranks, or a hybrid root's shard group.
  const std::shared_ptr<ProcessGroup>& RootGroup(ShardingStrategy root_strategy) const;

  // All ranks; null if only a pair was given.
  const std::shared_ptr<ProcessGroup>& all() const { return all_; }

  // All ranks of the model; differs from all() for a model with parallel layers.
  const std::shared_ptr<ProcessGroup>& everyone() const { return everyone_ ? everyone_ : all_; }

  // Null if UseTensorParallelism was not called.
  const std::shared_ptr<ProcessGroup>& tensor_parallel() const { return tensor_parallel_; }

  // The two groups of the hybrid strategies; null if the model does not have them.
  const std::shared_ptr<ProcessGroup>& shard() const { return shard_; }
  const std::shared_ptr<ProcessGroup>& replicate() const { return replicate_; }

  // True if the groups come from a mesh.
  bool from_mesh() const { return from_mesh_; }

  // Any of the groups, for the device and for memory.
  ProcessGroup& any() const { return all_ ? *all_ : *shard_; }

  // The first error of any rank, in the order of ranks, on all of them. Collective; blocks.
  absl::Status AllReduceStatus(const absl::Status& mine) const;

  // OK if every rank passes the same `blob`. Otherwise kFailedPrecondition; the message begins with `what` and shows
  // two blobs that differ. Collective; blocks.
  absl::Status CheckEqual(const std::string& blob, std::string_view what) const;

 private:
  std::shared_ptr<ProcessGroup> all_;  // null when only a pair is given
  std::shared_ptr<ProcessGroup> shard_, replicate_;
  std::shared_ptr<ProcessGroup> tensor_parallel_, everyone_;
  std::shared_ptr<const DeviceMesh> mesh_;  // null if no mesh was given
  bool from_pair_ = false;
  bool from_mesh_ = false;
};

// Every rank of a model as if it were one group, for purposes that concern all of them: agreement, and values that only
// rank 0 has. A model that was given one group or a mesh has such a group (ShardGroups::everyone). A pair of groups
// (shard, replicate) does not, so each call goes through one group and then the other. Rank = replicate rank * shard
// group's size + shard rank.
class AllRanks {
 public:
  // `groups` must outlive it.
  explicit AllRanks(const ShardGroups& groups);

  int rank() const;
  int size() const;

  // Every rank's blob, by rank. Collective; blocks.
  absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob) const;

  // The same by ProcessGroup::AllGatherObjectUnordered.
  absl::StatusOr<std::vector<std::string>> AllGatherObjectUnordered(std::string_view blob) const;

  // Sets all of `tensors` to rank 0's, in one exchange. Collective.
  void BroadcastFromFirst(absl::Span<const Tensor> tensors, Stream& stream) const;

  // As ShardGroups::AllReduceStatus.
  absl::Status AllReduceStatus(const absl::Status& mine) const { return groups_.AllReduceStatus(mine); }

 private:
  using Gather = absl::StatusOr<std::vector<std::string>> (ProcessGroup::*)(std::string_view blob);
  absl::StatusOr<std::vector<std::string>> GatherBy(Gather gather, std::string_view blob) const;

  const ShardGroups& groups_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_SHARD_GROUPS_H_
