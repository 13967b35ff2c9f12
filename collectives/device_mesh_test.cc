// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/device_mesh.h"

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
    FSDP_ASSIGN_OR_RETURN(const auto ranks, shard->GatherBlobs(std::to_string(group->rank())));
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
  EXPECT_THAT(CreateOnFour({1, 2, 2}, {"a", "b", "c"}), StatusIs(Code::kInvalidArgument, HasSubstr("3 dimensions")));
  EXPECT_THAT(CreateOnFour({-2, -2}, {"a", "b"}), StatusIs(Code::kInvalidArgument, HasSubstr("size -2")));
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

}  // namespace
}  // namespace fsdp
