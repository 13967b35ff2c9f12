// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/initializer.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

std::vector<float> Fill(const Initializer& initializer, uint64_t seed, std::string_view fqn, const Interval& interval) {
  std::vector<float> values(interval.size());
  initializer.Fill(seed, fqn, interval, values.data());
  return values;
}

// Any rank can fill any shard, and all world sizes start from the same values.
TEST(InitializerTest, AnyIntervalHasTheValuesOfTheWhole) {
  const Initializer normal = Initializer::Normal(1, 2);
  const std::vector<float> whole = Fill(normal, 7, "wte.weight", {0, 301});
  for (const Interval& interval :
       {Interval{0, 1}, Interval{1, 4}, Interval{3, 300}, Interval{255, 257}, Interval{9, 9}}) {
    const std::vector<float> part = Fill(normal, 7, "wte.weight", interval);
    EXPECT_EQ(part, std::vector<float>(whole.begin() + interval.begin, whole.begin() + interval.end))
        << interval.ToString();
  }
}

TEST(InitializerTest, SeedAndNameChooseTheValues) {
  const Initializer normal = Initializer::Normal(0, 1);
  EXPECT_EQ(Fill(normal, 1, "a", {0, 8}), Fill(normal, 1, "a", {0, 8}));
  EXPECT_NE(Fill(normal, 1, "a", {0, 8}), Fill(normal, 1, "b", {0, 8}));
  EXPECT_NE(Fill(normal, 1, "a", {0, 8}), Fill(normal, 2, "a", {0, 8}));
}

TEST(InitializerTest, NormalHasItsMeanAndDeviation) {
  constexpr int64_t kCount = 100000;
  const std::vector<float> values = Fill(Initializer::Normal(0.5f, 0.02f), 3, "w", {0, kCount});
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += (value - 0.5) * (value - 0.5);
  }
  EXPECT_NEAR(sum / kCount, 0.5, 4 * 0.02 / std::sqrt(kCount));
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 0.0002);
}

TEST(InitializerTest, ConstantIsConstant) {
  EXPECT_EQ(Fill(Initializer::Constant(1), 3, "w", {5, 8}), std::vector<float>(3, 1.0f));
}

}  // namespace
}  // namespace fsdp
