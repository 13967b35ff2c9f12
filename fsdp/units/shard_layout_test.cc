// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/shard_layout.h"

#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

ShardLayout Layout(const std::vector<Shape>& shapes, const ShardLayoutOptions& options) {
  std::vector<ShardLayout::Entry> entries;
  for (const Shape& shape : shapes) entries.push_back({"p" + std::to_string(entries.size()), shape, 0});
  return ShardLayout(std::move(entries), options);
}

TEST(ShardLayoutTest, ConcatenatesWithoutPadding) {
  const ShardLayout layout = Layout({{5, 7}, {7}}, {.world_size = 2});
  EXPECT_EQ(layout.unsharded_numel(), 42);
  EXPECT_EQ(layout.shard_numel(), 21);
  EXPECT_EQ(layout.parameters()[1].offset, 35);
}

TEST(ShardLayoutTest, AlignsParametersAndTotalUnderUseOrigParams) {
  const ShardLayout layout = Layout({{5, 7}, {7}}, {.world_size = 2, .kind = LayoutKind::kFlatAligned});
  EXPECT_EQ(layout.parameters()[1].offset, 36);
  EXPECT_EQ(layout.unsharded_numel(), 44);
  EXPECT_EQ(layout.ShardSlice(0, 0).interval, (Interval{0, 22}));
  EXPECT_EQ(layout.ShardSlice(0, 1).interval, (Interval{22, 35}));
  EXPECT_EQ(layout.ShardSlice(1, 1).interval, (Interval{0, 7}));
  EXPECT_EQ(layout.ShardSlice(1, 1).offset_in_shard, 14);
  EXPECT_TRUE(layout.ShardSlice(1, 0).interval.empty());
}

TEST(ShardLayoutTest, PadsTheLastShards) {
  const ShardLayout layout = Layout({{5}}, {.world_size = 4});
  EXPECT_EQ(layout.shard_numel(), 2);
  EXPECT_EQ(layout.padded_numel(), 8);
  EXPECT_EQ(layout.ShardPadding(0), 0);
  EXPECT_EQ(layout.ShardPadding(2), 1);
  EXPECT_EQ(layout.ShardPadding(3), 2);
  EXPECT_TRUE(layout.ShardSlice(0, 3).interval.empty());
}

TEST(ShardLayoutTest, AlignmentFollowsTheForwardDtype) {
  const ShardLayout layout =
      Layout({{3}, {1}}, {.world_size = 1, .kind = LayoutKind::kFlatAligned, .forward_dtype = DType::kBFloat16});
  EXPECT_EQ(layout.parameters()[1].offset, 8);
}

TEST(ShardLayoutTest, ShardsCoverEveryParameterExactlyOnce) {
  for (const int world_size : {1, 2, 3, 4, 7, 31}) {
    for (const LayoutKind kind : {LayoutKind::kFlat, LayoutKind::kFlatAligned, LayoutKind::kDim0}) {
      const ShardLayout layout = Layout({{3, 5}, {1}, {0, 4}, {11}, {}}, {.world_size = world_size, .kind = kind});
      for (size_t i = 0; i < layout.parameters().size(); ++i) {
        std::vector<Interval> slices;
        for (int rank = 0; rank < world_size; ++rank) slices.push_back(layout.ShardSlice(i, rank).interval);
        EXPECT_TRUE(CheckCover(slices, layout.parameters()[i].shape.numel()).ok());
      }
    }
  }
}

TEST(ShardLayoutTest, PackedItHasWhatEachRankHadOfSomeParameters) {
  for (const int world_size : {1, 2, 3, 5, 31}) {
    for (const LayoutKind kind : {LayoutKind::kFlat, LayoutKind::kFlatAligned}) {
      const ShardLayout whole = Layout({{3, 5}, {1}, {0, 4}, {11}, {6}}, {.world_size = world_size, .kind = kind});
      const std::vector<bool> kept = {false, true, true, true, false};
      const ShardLayout packed = whole.Packed(kept);
      EXPECT_EQ(packed.padded_numel(), kind == LayoutKind::kFlat ? 12 : 15);
      EXPECT_EQ(packed.ShardInterval(0).begin, 0);
      EXPECT_EQ(packed.ShardInterval(world_size - 1).end, packed.padded_numel());
      for (int rank = 0; rank < world_size; ++rank) {
        for (size_t i = 0; i < kept.size(); ++i) {
          const ShardLayout::Slice slice = packed.ShardSlice(i, rank);
          EXPECT_EQ(slice.interval, kept[i] ? whole.ShardSlice(i, rank).interval : Interval());
          if (slice.interval.empty()) continue;
          EXPECT_EQ(packed.ShardInterval(rank).begin + slice.offset_in_shard,
                    packed.parameters()[i].offset + slice.interval.begin);
        }
      }
    }
  }
}

TEST(ShardLayoutTest, Dim0GivesEachRankRowsOfEveryParameter) {
  const ShardLayout layout = Layout({{5, 7}, {5}, {1, 3}}, {.world_size = 2, .kind = LayoutKind::kDim0});
  EXPECT_FALSE(layout.in_place());
  EXPECT_EQ(layout.shard_numel(), 3 * 7 + 3 + 3);
  EXPECT_EQ(layout.unsharded_numel(), 2 * layout.shard_numel());
  EXPECT_EQ(layout.parameters()[1].offset, 2 * 3 * 7);
  EXPECT_EQ(layout.chunk_numel(1), 3);
  EXPECT_EQ(layout.ShardSlice(0, 1).interval, (Interval{21, 35}));
  EXPECT_EQ(layout.ShardSlice(0, 1).offset_in_shard, 0);
  EXPECT_EQ(layout.ShardSlice(1, 1).interval, (Interval{3, 5}));
  EXPECT_EQ(layout.ShardSlice(1, 1).offset_in_shard, 21);
  EXPECT_TRUE(layout.ShardSlice(2, 1).interval.empty());
  EXPECT_EQ(layout.ShardPadding(1), 0);
}

TEST(ShardLayoutTest, Dim0OnOneRankIsConcatenationInPlace) {
  const ShardLayout layout = Layout({{5, 7}, {3}}, {.world_size = 1, .kind = LayoutKind::kDim0});
  EXPECT_TRUE(layout.in_place());
  EXPECT_EQ(layout.padded_numel(), 38);
  EXPECT_EQ(layout.parameters()[1].offset, 35);
}

// Chunks of an unsharded parameter side by side are the parameter, then zeros: a view needs no second copy.
TEST(ShardLayoutTest, Dim0ChunksFollowEachOtherInTheUnshardedBuffer) {
  const ShardLayout layout = Layout({{5, 2}, {7}}, {.world_size = 3, .kind = LayoutKind::kDim0});
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    for (int rank = 0; rank < 3; ++rank) {
      const ShardLayout::Slice slice = layout.ShardSlice(i, rank);
      if (slice.interval.empty()) continue;
      EXPECT_EQ(slice.interval.begin, rank * layout.chunk_numel(i));
      EXPECT_EQ(slice.offset_in_shard, layout.chunk_offset(i));
    }
  }
}

// One unit of one golden layout against ours, on every rank.
void ExpectSameLayout(const json& golden, size_t unit, const ShardLayoutOptions& options) {
  const json& expected = golden["units"][unit];
  std::vector<Shape> shapes;
  for (const json& dims : expected["shapes"]) shapes.push_back(*Shape::Create(dims.get<std::vector<int64_t>>()));
  const ShardLayout layout = Layout(shapes, options);
  EXPECT_EQ(layout.unsharded_numel(), expected["unpadded_unsharded_size"][0].get<int64_t>());
  for (int rank = 0; rank < options.world_size; ++rank) {
    const json& of_rank = golden["ranks"][rank][unit];
    EXPECT_EQ(layout.shard_numel(), of_rank["shard_numel"].get<int64_t>());
    EXPECT_EQ(layout.ShardPadding(rank), of_rank["shard_numel_padded"].get<int64_t>());
    for (size_t i = 0; i < shapes.size(); ++i) {
      const ShardLayout::Slice slice = layout.ShardSlice(i, rank);
      if (of_rank["shard"][i].is_null()) {
        EXPECT_TRUE(slice.interval.empty());
        continue;
      }
      const std::vector<int64_t> wanted = of_rank["shard"][i].get<std::vector<int64_t>>();
      EXPECT_EQ(slice.interval, (Interval{wanted[0], wanted[1] + 1}));
      EXPECT_EQ(slice.offset_in_shard, wanted[2]);
    }
  }
}

// testdata/layouts.json holds FSDP1's own layouts, read out of PyTorch 2.15.
TEST(ShardLayoutTest, MatchesPyTorchsLayouts) {
  std::ifstream file("fsdp/units/testdata/layouts.json");
  ASSERT_TRUE(file.is_open());
  const json layouts = json::parse(file);
  ASSERT_GE(layouts.size(), 8u);
  for (const json& golden : layouts) {
    SCOPED_TRACE(golden["flags"].dump());
    const ShardLayoutOptions options{
        .world_size = golden["flags"]["nproc"].get<int>(),
        .kind = golden["flags"]["use_orig_params"].get<bool>() ? LayoutKind::kFlatAligned : LayoutKind::kFlat,
        .forward_dtype = *ParseDType(golden["flags"].value("param_dtype", "float32"))};
    for (size_t unit = 0; unit < golden["units"].size(); ++unit) ExpectSameLayout(golden, unit, options);
  }
}

// [2, 6, 2] on dimension 1 over 3 ranks: two of six rows of 2, of each of 2.
TEST(ShardLayoutTest, AnotherDimensionIsCutInOneRunForEachOuterIndex) {
  const ShardLayout layout({{"rows", {4}, 0}, {"cube", {2, 6, 2}, 0, /*dim=*/1}},
                           {.world_size = 3, .kind = LayoutKind::kDim0});
  EXPECT_FALSE(layout.is_cut_by_rows());
  EXPECT_TRUE(layout.is_cut_by_rows(0));
  EXPECT_EQ(layout.chunk_numel(1), 8);
  EXPECT_EQ(layout.ShardSlice(1, 2).interval, (Interval{0, 8}));
  EXPECT_EQ(layout.ShardSlice(1, 2).offset_in_shard, 2);  // behind two padded rows
  const std::vector<ShardLayout::Slice> runs = layout.ShardRuns(1, 2);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].interval, (Interval{8, 12}));
  EXPECT_EQ(runs[0].offset_in_shard, 2);
  EXPECT_EQ(runs[1].interval, (Interval{20, 24}));
  EXPECT_EQ(runs[1].offset_in_shard, 6);
  EXPECT_TRUE(layout.ShardRuns(0, 2).empty());
}

TEST(ShardLayoutTest, FewerRanksHaveLargerRunsOfAnotherDimension) {
  const ShardLayout layout({{"matrix", {3, 8}, 0, /*dim=*/1}}, {.world_size = 4, .kind = LayoutKind::kDim0});
  const std::vector<IntervalCopy> runs = layout.ChunkRuns(0, /*rank=*/1, /*ranks=*/2);
  ASSERT_EQ(runs.size(), 3u);
  for (int64_t row = 0; row < 3; ++row) {
    EXPECT_EQ(runs[row].from, row * 8 + 4);
    EXPECT_EQ(runs[row].to, row * 4);
    EXPECT_EQ(runs[row].numel, 4);
  }
}

TEST(ShardLayoutTest, ASingleRankCutsNothing) {
  const ShardLayout layout({{"matrix", {3, 8}, 0, /*dim=*/1}}, {.world_size = 1, .kind = LayoutKind::kDim0});
  EXPECT_TRUE(layout.is_cut_by_rows());
  EXPECT_TRUE(layout.in_place());
}

}  // namespace
}  // namespace fsdp
