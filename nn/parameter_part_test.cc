// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/parameter_part.h"

#include <array>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Copied = std::array<int64_t, 3>;  // from, to, numel

std::vector<Copied> Runs(const Shape& shape, const ParameterPart& part, const Interval& interval) {
  std::vector<Copied> runs;
  for (const IntervalCopy& run : RunsInWhole(shape, part, interval)) runs.push_back({run.from, run.to, run.numel});
  return runs;
}

TEST(ParameterPartTest, ACutOfDimension0IsOneRun) {
  EXPECT_EQ(Runs({2, 3}, {{6, 3}, 0, 2}, {0, 6}), (std::vector<Copied>{{0, 6, 6}}));
  EXPECT_EQ(Runs({2}, {{6}, 0, 4}, {1, 2}), (std::vector<Copied>{{1, 5, 1}}));
}

TEST(ParameterPartTest, ACutOfAnotherDimensionIsOneRunForEachRow) {
  EXPECT_EQ(Runs({2, 3}, {{2, 6}, 1, 3}, {0, 6}), (std::vector<Copied>{{0, 3, 3}, {3, 9, 3}}));
  EXPECT_EQ(Runs({2, 1, 2}, {{2, 3, 2}, 1, 1}, {0, 4}), (std::vector<Copied>{{0, 2, 2}, {2, 8, 2}}));
}

TEST(ParameterPartTest, AnIntervalCutsTheRunsAtItsEnds) {
  EXPECT_EQ(Runs({3, 3}, {{3, 6}, 1, 3}, {2, 7}), (std::vector<Copied>{{2, 5, 1}, {3, 9, 3}, {6, 15, 1}}));
  EXPECT_TRUE(Runs({3, 3}, {{3, 6}, 1, 3}, {2, 2}).empty());
}

}  // namespace
}  // namespace fsdp
