// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/device_mesh.h"

#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(DeviceMeshTest, OneDimensionIsTheGroupItself) {
  EXPECT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {3}, {"shard"}));
    EXPECT_EQ(mesh->ndim(), 1);
    EXPECT_EQ(mesh->group(0), group);
    return absl::OkStatus();
  }));
}

TEST(DeviceMeshTest, TwoDimensionsAreRowsAndColumnsOfTheRanks) {
  EXPECT_OK(RunRanks(6, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2, 3}, {"replicate", "shard"}));
    FSDP_ASSIGN_OR_RETURN(const auto shard, mesh->group("shard"));
    EXPECT_EQ(shard, mesh->group(1));
    EXPECT_EQ(shard->size(), 3);
    EXPECT_EQ(shard->rank(), group->rank() % 3);
    EXPECT_EQ(mesh->group(0)->size(), 2);
    EXPECT_EQ(mesh->group(0)->rank(), group->rank() / 3);
    FSDP_ASSIGN_OR_RETURN(const auto ranks, shard->AllGatherObject(std::to_string(group->rank())));
    const int first = group->rank() / 3 * 3;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(ranks[i], std::to_string(first + i));
    return absl::OkStatus();
  }));
}

absl::Status CreateOnFour(const std::vector<int>& sizes, const std::vector<std::string>& names) {
  return RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    return DeviceMesh::Create(group, sizes, names).status();
  });
}

TEST(DeviceMeshTest, WrongMeshesAreRefusedWithBothSides) {
  using Code = absl::StatusCode;
  EXPECT_THAT(CreateOnFour({2, 3}, {"a", "b"}),
              StatusIs(Code::kInvalidArgument, HasSubstr("sizes [2, 3] have 6 ranks, the group has 4")));
  EXPECT_THAT(CreateOnFour({4}, {"a", "b"}), StatusIs(Code::kInvalidArgument, HasSubstr("expected 1 distinct names")));
  EXPECT_THAT(CreateOnFour({2, 2}, {"a", "a"}), StatusIs(Code::kInvalidArgument, HasSubstr("names [a, a]")));
  EXPECT_THAT(CreateOnFour({}, {}), StatusIs(Code::kInvalidArgument, HasSubstr("no dimensions")));
  EXPECT_THAT(CreateOnFour({-2, -2}, {"a", "b"}), StatusIs(Code::kInvalidArgument, HasSubstr("size -2")));
  // The product is 30 * 2^64 + 4, which in 64 bits is 4.
  EXPECT_THAT(CreateOnFour({2, 2, 4301, 1185031, 109103, 248797}, {"a", "b", "c", "d", "e", "f"}),
              StatusIs(Code::kInvalidArgument, HasSubstr("have 2^63 or more ranks, the group has 4")));
}

TEST(DeviceMeshTest, RanksThatAskForDifferentMeshesAreTold) {
  const absl::Status status = RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const std::vector<int> sizes = group->rank() == 3 ? std::vector<int>{4, 1} : std::vector<int>{2, 2};
    return DeviceMesh::Create(group, sizes, {"replicate", "shard"}).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("rank 0 asks for replicate=2 x shard=2, rank 3 for replicate=4 x shard=1")));
}

TEST(DeviceMeshTest, UnknownDimensionIsAnErrorThatListsTheKnown) {
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    EXPECT_THAT(mesh->group("tp").status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("there are: [shard]")));
    return absl::OkStatus();
  }));
}

// The ranks of `group`, as ranks of the mesh.
absl::StatusOr<std::string> RanksOf(ProcessGroup& group, int rank) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> ranks, group.AllGatherObject(std::to_string(rank)));
  std::string all;
  for (const std::string& one : ranks) all += one;
  return all;
}

// Rank 5 of {2, 2, 2} is at (1, 0, 1).
TEST(DeviceMeshTest, EachOfThreeDimensionsHasAGroupAndACoordinate) {
  EXPECT_OK(RunRanks(8, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const int rank = group->rank();
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2, 2, 2}, {"replicate", "shard", "tp"}));
    EXPECT_EQ(mesh->coordinate(), (std::vector<int>{rank / 4, rank / 2 % 2, rank % 2}));
    std::vector<std::string> ranks;
    for (int dim = 0; dim < 3; ++dim) {
      EXPECT_EQ(mesh->group(dim)->rank(), mesh->coordinate()[dim]);
      FSDP_ASSIGN_OR_RETURN(const std::string of_dim, RanksOf(*mesh->group(dim), rank));
      ranks.push_back(of_dim);
    }
    if (rank == 5) {
      EXPECT_EQ(ranks, (std::vector<std::string>{"15", "57", "45"}));
    }
    return absl::OkStatus();
  }));
}

TEST(DeviceMeshTest, ASubmeshHasTheGroupsOfItsDimensionsAndKnowsItsRoot) {
  EXPECT_OK(RunRanks(8, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const int rank = group->rank();
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2, 2, 2}, {"replicate", "shard", "tp"}));
    FSDP_ASSIGN_OR_RETURN(const auto dp, mesh->Submesh({"replicate", "shard"}));
    EXPECT_EQ(dp->ToString(), "replicate=2 x shard=2");
    EXPECT_EQ(&dp->root(), mesh.get());
    EXPECT_EQ(&mesh->root(), mesh.get());
    EXPECT_EQ(dp->group(1), mesh->group(1));
    FSDP_ASSIGN_OR_RETURN(const std::string all, RanksOf(*dp->all(), rank));
    EXPECT_EQ(all, rank % 2 == 0 ? "0246" : "1357");
    FSDP_ASSIGN_OR_RETURN(const auto shard, dp->Submesh({"shard"}));
    EXPECT_EQ(&shard->root(), mesh.get());
    EXPECT_EQ(shard->all(), mesh->group(1));
    FSDP_ASSIGN_OR_RETURN(const auto whole, mesh->Submesh({"replicate", "shard", "tp"}));
    EXPECT_EQ(whole, mesh);
    return absl::OkStatus();
  }));
}

TEST(DeviceMeshTest, ASubmeshTakesKnownNamesOnceAndInOrder) {
  EXPECT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    using Code = absl::StatusCode;
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2, 2}, {"dp", "tp"}));
    EXPECT_THAT(mesh->Submesh({"pp"}), StatusIs(Code::kNotFound, HasSubstr("\"pp\"; there are: [dp, tp]")));
    EXPECT_THAT(mesh->Submesh({"tp", "dp"}), StatusIs(Code::kInvalidArgument, HasSubstr("in the order of the mesh")));
    EXPECT_THAT(mesh->Submesh({"dp", "dp"}), StatusIs(Code::kInvalidArgument, HasSubstr("each name once")));
    EXPECT_THAT(mesh->Submesh({}), StatusIs(Code::kInvalidArgument, HasSubstr("no dimension is named")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
