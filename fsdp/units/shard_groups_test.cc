// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/shard_groups.h"

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/forwarding_process_group.h"
#include "fsdp/collectives/group_hosts.h"
#include "fsdp/collectives/job/host_identity.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using Strategy = ShardingStrategy;

TEST(ShardGroupsTest, OneGroupShardsOverAllAndReplicatesUnderNoShard) {
  EXPECT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const ShardGroups groups(group);
    FSDP_ASSIGN_OR_RETURN(const UnitGroups full, groups.Of(Strategy::kFullShard));
    EXPECT_EQ(full.shard, group);
    EXPECT_EQ(full.replicate, nullptr);
    EXPECT_EQ(full.data_parallel_size(), 3);
    FSDP_ASSIGN_OR_RETURN(const UnitGroups whole, groups.Of(Strategy::kNoShard));
    EXPECT_EQ(whole.shard, nullptr);
    EXPECT_EQ(whole.replicate, group);
    EXPECT_EQ(whole.data_parallel_size(), 3);
    return absl::OkStatus();
  }));
}

TEST(ShardGroupsTest, AGroupOfOneIsNotSharded) {
  EXPECT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const UnitGroups groups, ShardGroups(group).Of(Strategy::kFullShard));
    EXPECT_EQ(groups.shard, nullptr);
    EXPECT_EQ(groups.replicate, group);
    return absl::OkStatus();
  }));
}

TEST(ShardGroupsTest, HybridGroupsAreConsecutiveBlocks) {
  EXPECT_OK(RunRanks(6, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ShardGroups groups(group);
    FSDP_RETURN_IF_ERROR(groups.SplitForHybrid(3));
    FSDP_ASSIGN_OR_RETURN(const UnitGroups hybrid, groups.Of(Strategy::kHybridShard));
    EXPECT_EQ(hybrid.shard->size(), 3);
    EXPECT_EQ(hybrid.shard_rank(), group->rank() % 3);
    EXPECT_EQ(hybrid.replicate->rank(), group->rank() / 3);
    EXPECT_EQ(hybrid.data_parallel_size(), 6);
    // Units that are not hybrid still shard over all.
    FSDP_ASSIGN_OR_RETURN(const UnitGroups full, groups.Of(Strategy::kFullShard));
    EXPECT_EQ(full.shard, group);
    EXPECT_EQ(groups.RootGroup(Strategy::kFullShard), group);
    EXPECT_EQ(groups.RootGroup(Strategy::kHybridShardZero2), hybrid.shard);
    return absl::OkStatus();
  }));
}

// A rank that pretends to be on another host than this one.
class OnHost final : public ForwardingProcessGroup {
 public:
  OnHost(std::shared_ptr<ProcessGroup> inner, std::string host)
      : ForwardingProcessGroup(std::move(inner)), host_(std::move(host)) {}

  absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob) override {
    const bool tells_host = blob == HostIdentity::OfThisProcess("").ToBlob();
    return inner().AllGatherObject(tells_host ? HostIdentity{.name = host_, .kernel = host_}.ToBlob()
                                              : std::string(blob));
  }

 private:
  const std::string host_;
};

TEST(ShardGroupsTest, RanksOfAHostShardAndHostsReplicate) {
  EXPECT_OK(RunRanks(6, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ShardGroups groups(std::make_shared<OnHost>(group, group->rank() < 3 ? "host-a" : "host-b"));
    EXPECT_TRUE(groups.is_one_group());
    FSDP_RETURN_IF_ERROR(groups.SplitByHosts());
    EXPECT_FALSE(groups.is_one_group());
    EXPECT_EQ(groups.shard()->size(), 3);
    EXPECT_EQ(groups.shard()->rank(), group->rank() % 3);
    EXPECT_EQ(groups.replicate()->size(), 2);
    EXPECT_EQ(groups.replicate()->rank(), group->rank() / 3);
    return absl::OkStatus();
  }));
}

TEST(ShardGroupsTest, OnOneHostAllRanksShardAndNoneReplicate) {
  EXPECT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ShardGroups groups(group);
    FSDP_RETURN_IF_ERROR(groups.SplitByHosts());
    EXPECT_EQ(groups.shard()->size(), 3);
    EXPECT_EQ(groups.replicate()->size(), 1);
    return absl::OkStatus();
  }));
}

TEST(ShardGroupsTest, HostsThatAreUnevenNeedASize) {
  EXPECT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ShardGroups groups(std::make_shared<OnHost>(group, group->rank() < 2 ? "host-a" : "host-b"));
    EXPECT_THAT(groups.SplitByHosts(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "hybrid sharding without a shard_group_size: the ranks of one host shard together, but there "
                         "are 2 hosts with 2, 1 ranks: host-a has ranks 0, 1; host-b has rank 2; start "
                         "equally many ranks on every host, numbered host by host, or give the size of the shard "
                         "groups"));
    return absl::OkStatus();
  }));
}

TEST(ShardGroupsTest, AMeshOfTwoDimensionsReplicatesAlongTheFirst) {
  EXPECT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2, 2}, {"replicate", "shard"}));
    FSDP_ASSIGN_OR_RETURN(const UnitGroups hybrid, ShardGroups(mesh).Of(Strategy::kHybridShard));
    EXPECT_EQ(hybrid.shard, mesh->group(1));
    EXPECT_EQ(hybrid.replicate, mesh->group(0));
    return absl::OkStatus();
  }));
}

TEST(ShardGroupsTest, AGivenPairServesHybridStrategiesOnly) {
  EXPECT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2, 2}, {"replicate", "shard"}));
    const ShardGroups groups(std::pair(mesh->group(1), mesh->group(0)));
    FSDP_ASSIGN_OR_RETURN(const UnitGroups hybrid, groups.Of(Strategy::kHybridShard));
    EXPECT_EQ(hybrid.shard, mesh->group(1));
    EXPECT_THAT(groups.Of(Strategy::kFullShard).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("full_shard shards over all ranks, but")));
    return absl::OkStatus();
  }));
}

TEST(ShardGroupsTest, AgreementReachesEveryRankOfAPair) {
  EXPECT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2, 2}, {"replicate", "shard"}));
    const ShardGroups groups(std::pair(mesh->group(1), mesh->group(0)));
    const absl::Status mine = group->rank() == 3 ? absl::InternalError("lost") : absl::OkStatus();
    EXPECT_THAT(groups.AllReduceStatus(mine), StatusIs(absl::StatusCode::kInternal, HasSubstr("lost")));
    return absl::OkStatus();
  }));
}

TEST(ShardGroupsTest, HybridWithoutItsGroupsIsAnError) {
  EXPECT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const auto invalid = [](const char* text) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)); };
    ShardGroups groups(group);
    EXPECT_THAT(groups.Of(Strategy::kHybridShard).status(),
                invalid("hybrid_shard needs a shard group and a replicate group: give the two as a pair, or a mesh "
                        "with 2 dimensions, or one group and an auto_wrap_policy"));
    EXPECT_THAT(groups.SplitForHybrid(3), invalid("shard_group_size 3 does not divide the group's 4 ranks"));
    FSDP_RETURN_IF_ERROR(groups.SplitForHybrid(2));
    EXPECT_THAT(groups.SplitForHybrid(2), invalid("the shard and replicate groups are given already"));
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {4}, {"shard"}));
    EXPECT_THAT(ShardGroups(mesh).Of(Strategy::kHybridShardZero2).status(), invalid("a mesh with 2 dimensions"));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
