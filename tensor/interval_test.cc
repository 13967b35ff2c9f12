// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/interval.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(IntervalTest, KnowsItsSize) {
  const Interval interval = {7752, 12336};
  EXPECT_EQ(interval.size(), 4584);
  EXPECT_FALSE(interval.empty());
  EXPECT_TRUE((Interval{3, 3}.empty()));
  EXPECT_EQ(interval.ToString(), "[7752, 12336)");
  EXPECT_TRUE(interval.Contains({7752, 12336}));
  EXPECT_TRUE(interval.Contains({8000, 8000}));
  EXPECT_FALSE(interval.Contains({7751, 8000}));
  EXPECT_FALSE(interval.Contains({8000, 12337}));
  EXPECT_NE(interval, (Interval{7752, 12335}));
}

TEST(IntervalTest, IntersectionIsTheCommonPart) {
  // By brute force over all small intervals.
  for (int64_t a = 0; a < 5; ++a) {
    for (int64_t b = a; b < 5; ++b) {
      for (int64_t c = 0; c < 5; ++c) {
        for (int64_t d = c; d < 5; ++d) {
          const Interval common = Intersect({a, b}, {c, d});
          EXPECT_LE(common.begin, common.end);
          for (int64_t i = 0; i < 5; ++i) {
            const bool in_both = a <= i && i < b && c <= i && i < d;
            EXPECT_EQ(common.begin <= i && i < common.end, in_both);
          }
        }
      }
    }
  }
}

TEST(ChunkOfTest, FollowsTorchChunk) {
  // torch.arange(10).chunk(4): 3, 3, 3, 1; chunk(6) has five chunks of 2.
  EXPECT_EQ(ChunkOf(10, 4, 0), (Interval{0, 3}));
  EXPECT_EQ(ChunkOf(10, 4, 3), (Interval{9, 10}));
  EXPECT_EQ(ChunkOf(10, 6, 4), (Interval{8, 10}));
  EXPECT_EQ(ChunkOf(10, 6, 5), (Interval{10, 10}));
  EXPECT_EQ(ChunkOf(2, 4, 3), (Interval{2, 2}));
  EXPECT_EQ(ChunkOf(0, 4, 0), (Interval{0, 0}));
}

TEST(ChunkOfTest, ChunksCoverEverythingOnce) {
  for (int64_t n = 0; n < 40; ++n) {
    for (int count = 1; count < 12; ++count) {
      std::vector<Interval> chunks;
      for (int i = 0; i < count; ++i) chunks.push_back(ChunkOf(n, count, i));
      EXPECT_OK(CheckCover(chunks, n)) << n << " in " << count;
    }
  }
}

TEST(ChunkOfTest, LargeCountsDoNotOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 2;
  constexpr int kCount = 1 << 20;
  EXPECT_EQ(ChunkOf(kMax, kCount, kCount - 1).end, kMax);
}

TEST(Dim0ChunkTest, CutsBetweenRows) {
  const Shape shape = {5, 3};
  EXPECT_EQ(Dim0Chunk(shape, 2, 0), (Interval{0, 9}));
  EXPECT_EQ(Dim0Chunk(shape, 2, 1), (Interval{9, 15}));
  EXPECT_EQ(Dim0Chunk(shape, 8, 7), (Interval{15, 15}));
  EXPECT_TRUE(Dim0Chunk({0, 3}, 2, 0).empty());
  EXPECT_TRUE(Dim0Chunk({4, 0}, 2, 1).empty());
}

TEST(Dim0ChunkTest, AScalarIsWhollyRankZeros) {
  EXPECT_EQ(Dim0Chunk(Shape(), 4, 0), (Interval{0, 1}));
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(Dim0Chunk(Shape(), 4, rank), (Interval{1, 1}));
}

TEST(CheckCoverTest, AcceptsAnyOrderAndEmptyIntervals) {
  EXPECT_OK(CheckCover({{5, 9}, {0, 5}, {3, 3}, {100, 100}}, 9));
  EXPECT_OK(CheckCover({}, 0));
  EXPECT_OK(CheckCover({{0, 0}}, 0));
}

TEST(CheckCoverTest, NamesTheFirstHole) {
  const auto missing = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, "elements " + what + " are missing");
  };
  EXPECT_THAT(CheckCover({{0, 5}, {9, 12}, {13, 20}}, 20), missing("[5, 9)"));
  EXPECT_THAT(CheckCover({{1, 4}}, 4), missing("[0, 1)"));
  EXPECT_THAT(CheckCover({{0, 3}}, 4), missing("[3, 4)"));
  EXPECT_THAT(CheckCover({}, 4), missing("[0, 4)"));
}

TEST(CheckCoverTest, NamesTheFirstOverlap) {
  const auto twice = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, "elements " + what + " are held twice");
  };
  EXPECT_THAT(CheckCover({{0, 4}, {2, 6}}, 6), twice("[2, 4)"));
  EXPECT_THAT(CheckCover({{0, 6}, {2, 4}}, 6), twice("[2, 4)"));
  EXPECT_THAT(CheckCover({{0, 6}, {0, 6}}, 6), twice("[0, 6)"));
}

TEST(CheckCoverTest, RefusesWhatLiesOutside) {
  EXPECT_THAT(CheckCover({{0, 7}}, 6), StatusIs(absl::StatusCode::kDataLoss, "elements [0, 7) reach outside [0, 6)"));
  EXPECT_THAT(CheckCover({{-2, 3}, {3, 6}}, 6),
              StatusIs(absl::StatusCode::kDataLoss, "elements [-2, 3) reach outside [0, 6)"));
  EXPECT_THAT(CheckCover({{5, 3}}, 6), StatusIs(absl::StatusCode::kDataLoss, "interval [5, 3) ends before it begins"));
}

// Against a count per element.
TEST(CheckCoverTest, AgreesWithCounting) {
  std::mt19937 random(1);
  constexpr int64_t kNumel = 8;
  for (int repetition = 0; repetition < 20000; ++repetition) {
    std::vector<Interval> intervals(random() % 5);
    std::vector<int> held(kNumel);
    for (Interval& interval : intervals) {
      interval.begin = random() % (kNumel + 1);
      interval.end = interval.begin + random() % (kNumel + 1 - interval.begin);
      for (int64_t i = interval.begin; i < interval.end; ++i) ++held[i];
    }
    const bool exact = std::all_of(held.begin(), held.end(), [](int n) { return n == 1; });
    EXPECT_EQ(CheckCover(intervals, kNumel).ok(), exact);
  }
}

}  // namespace
}  // namespace fsdp
