// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/dtensor.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr DTensorPlacement kReplicate = {};
DTensorPlacement Shard(int dim) { return {DTensorPlacement::Kind::kShard, dim, 1}; }
DTensorPlacement Strided(int dim, int64_t factor) { return {DTensorPlacement::Kind::kStridedShard, dim, factor}; }

DTensor Make(Shape shape, std::vector<int64_t> mesh, std::vector<DTensorPlacement> placements) {
  auto made = std::make_shared<StoredMesh>();
  made->shape = std::move(mesh);
  int32_t count = 1;
  for (const int64_t size : made->shape) count *= static_cast<int32_t>(size);
  for (int32_t rank = 0; rank < count; ++rank) made->ranks.push_back(rank);
  DTensor tensor;
  tensor.shape = std::move(shape);
  tensor.mesh = std::move(made);
  tensor.placements.assign(placements.begin(), placements.end());
  return tensor;
}

// The first row of each rank's part, and how many it has.
std::vector<std::pair<int64_t, int64_t>> Rows(const DTensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (size_t place = 0; place < tensor.mesh->ranks.size(); ++place) {
    const Box box = BoxOf(tensor, static_cast<int64_t>(place));
    rows.emplace_back(box.start[0], box.count[0]);
  }
  return rows;
}

TEST(DTensorTest, AShardIsAPartAsTorchChunkCutsIt) {
  const DTensor tensor = Make({11, 6}, {4}, {Shard(0)});
  ASSERT_OK(CheckDTensor(tensor));
  EXPECT_THAT(Rows(tensor), ElementsAre(std::pair(0, 3), std::pair(3, 3), std::pair(6, 3), std::pair(9, 2)));
  EXPECT_THAT(Rows(Make({5, 6}, {4}, {Shard(0)})),
              ElementsAre(std::pair(0, 2), std::pair(2, 2), std::pair(4, 1), std::pair(5, 0)));
}

TEST(DTensorTest, ShardsOfOneDimensionCutFromLeftToRight) {
  const DTensor tensor = Make({8}, {2, 2}, {Shard(0), Shard(0)});
  ASSERT_OK(CheckDTensor(tensor));
  EXPECT_THAT(Rows(tensor), ElementsAre(std::pair(0, 2), std::pair(2, 2), std::pair(4, 2), std::pair(6, 2)));
}

// FSDP over tensor parallelism: tensor parallelism has cut first.
TEST(DTensorTest, AStridedShardCutsThePartsOfTheShardToItsRight) {
  const DTensor tensor = Make({8}, {2, 2}, {Strided(0, 2), Shard(0)});
  ASSERT_OK(CheckDTensor(tensor));
  EXPECT_THAT(Rows(tensor), ElementsAre(std::pair(0, 2), std::pair(4, 2), std::pair(2, 2), std::pair(6, 2)));
}

TEST(DTensorTest, CopiesHaveOneFirst) {
  const DTensor tensor = Make({8, 4}, {2, 3}, {kReplicate, Shard(1)});
  ASSERT_OK(CheckDTensor(tensor));
  EXPECT_FALSE(tensor.is_whole());
  for (int64_t place = 0; place < 6; ++place) {
    EXPECT_EQ(FirstCopyOf(tensor, place), place % 3);
    EXPECT_EQ(IsFirstCopy(tensor, place), place < 3);
  }
  EXPECT_EQ(BoxOf(tensor, 5).start, (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(Make({8, 4}, {2, 1}, {kReplicate, Shard(1)}).is_whole());
}

TEST(DTensorTest, PlacementsWithoutAMeaningAreRefused) {
  EXPECT_THAT(CheckDTensor(Make({8}, {2, 2}, {Shard(0)})),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1 placements on a mesh of 2 dimensions")));
  EXPECT_THAT(CheckDTensor(Make({8}, {2}, {Shard(1)})),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("Shard(1) of a tensor of shape [8]")));
  EXPECT_THAT(CheckDTensor(Make({8}, {2, 2}, {Strided(0, 3), Shard(0)})),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("dimension 0 has 2 parts already")));
  EXPECT_THAT(CheckDTensor(Make({8}, {2}, {Strided(0, 2)})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without the shard that it divides")));
  EXPECT_THAT(CheckDTensor(Make({8}, {2, 2, 2}, {Strided(0, 2), Shard(0), Shard(0)})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("again after a strided shard")));
}

TEST(DTensorTest, AMeshHasEachRankOnce) {
  StoredMesh mesh;
  mesh.shape = {2};
  mesh.ranks = {1, 1};
  EXPECT_THAT(CheckMesh(mesh), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the rank 1 twice")));
  mesh.ranks = {0, 1, 2};
  EXPECT_THAT(CheckMesh(mesh), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("[2] and 3 ranks")));
  mesh.shape = {int64_t{1} << 40};
  EXPECT_THAT(CheckMesh(mesh), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a mesh with the sizes")));
}

}  // namespace
}  // namespace fsdp
