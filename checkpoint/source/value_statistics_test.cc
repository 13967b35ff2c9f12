// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/value_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

ValueStatistics Of(const std::vector<float>& values) {
  ValueStatistics statistics;
  EXPECT_OK(AddElements(DType::kFloat32, values.data(), static_cast<int64_t>(values.size()), statistics));
  return statistics;
}

TEST(ValueStatisticsTest, MomentsAndExtremesAreOfFiniteElements) {
  const ValueStatistics statistics = Of({-3, 5, 0, INFINITY, std::nanf(""), 1, 1});
  EXPECT_EQ(statistics.numel, 7);
  EXPECT_EQ(statistics.finite(), 5);
  EXPECT_EQ(statistics.nonfinite.nan, 1);
  EXPECT_EQ(statistics.nonfinite.inf, 1);
  EXPECT_EQ(statistics.zeros, 1);
  EXPECT_EQ(statistics.min, -3);
  EXPECT_EQ(statistics.max, 5);
  EXPECT_EQ(statistics.mean(), 0.8);
  EXPECT_EQ(statistics.squares, 36);
  EXPECT_EQ(Of({2, 4}).deviation(), 1);
  EXPECT_EQ(Of({INFINITY}).mean(), std::nullopt);
  EXPECT_EQ(Of({}).rms(), std::nullopt);
}

TEST(ValueStatisticsTest, APackedElementCountsAsItsTwoNumbers) {
  const std::vector<uint8_t> bytes(5000, 0xF2);  // 1 and -6
  ValueStatistics statistics;
  ASSERT_OK(AddElements(DType::kFloat4E2M1FNx2, bytes.data(), 5000, statistics));
  EXPECT_EQ(statistics.numel, 10'000);
  EXPECT_EQ(statistics.min, -6);
  EXPECT_EQ(statistics.max, 1);
  EXPECT_EQ(statistics.mean(), -2.5);
}

TEST(ValueStatisticsTest, TheHistogramCountsOctavesBySign) {
  const ValueStatistics statistics = Of({1, 1.5, -2, -3.9f, 1e-30f, -1e30f});
  const int one = -ValueStatistics::kLowestExponent;
  EXPECT_EQ(statistics.positive[one], 2);
  EXPECT_EQ(statistics.negative[one + 1], 2);
  EXPECT_EQ(statistics.positive.front(), 1);
  EXPECT_EQ(statistics.negative.back(), 1);
}

// Many values take another code path than few.
TEST(ValueStatisticsTest, ManyValuesCountAsTheyDoOneByOne) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(0.1, 1);
  std::vector<double> values(40'013);
  for (double& value : values) value = normal(random) * std::ldexp(1.0, static_cast<int>(random() % 90) - 45);
  const double special[] = {0.0, -0.0, -0.0, 5e-324, -5e-324, 1e300, -1e300, 0x1p-36, 0x1p15};
  for (size_t i = 0; i < 5000; ++i) values[7 * i % 20'000] = special[i % 9];
  values[30'000] = NAN;
  values[30'001] = INFINITY;
  values[30'002] = -INFINITY;

  ValueStatistics all, in_parts;
  ASSERT_OK(AddElements(DType::kFloat64, values.data(), static_cast<int64_t>(values.size()), all));
  for (size_t at = 0; at < values.size(); at += 1000) {
    const auto count = static_cast<int64_t>(std::min<size_t>(1000, values.size() - at));
    ASSERT_OK(AddElements(DType::kFloat64, values.data() + at, count, in_parts));
  }
  EXPECT_EQ(all.numel, in_parts.numel);
  EXPECT_EQ(all.zeros, in_parts.zeros);
  EXPECT_EQ(all.nonfinite.nan, 1);
  EXPECT_EQ(all.nonfinite.inf, 2);
  EXPECT_EQ(all.min, in_parts.min);
  EXPECT_EQ(all.max, in_parts.max);
  EXPECT_EQ(all.negative, in_parts.negative);
  EXPECT_EQ(all.positive, in_parts.positive);

  // Without values whose squares exceed float64, the sums agree too.
  for (double& value : values) {
    if (!(std::abs(value) < 1e200)) value = 2;
  }
  all = in_parts = {};
  ASSERT_OK(AddElements(DType::kFloat64, values.data(), static_cast<int64_t>(values.size()), all));
  for (const double& value : values) ASSERT_OK(AddElements(DType::kFloat64, &value, 1, in_parts));
  EXPECT_EQ(all.positive, in_parts.positive);
  EXPECT_NEAR(all.sum / in_parts.sum, 1, 1e-12);
  EXPECT_NEAR(all.squares / in_parts.squares, 1, 1e-12);
}

TEST(SourceStatisticsTest, EveryTensorIsReadOnceWhateverTheWorldSize) {
  // float32 of 1 to 8, over several blocks.
  const std::vector<TestTensor> tensors = {{StateKey::Model("w"), DType::kFloat32, {1100, 2049}},
                                           {StateKey::Model("flag"), DType::kBool, {10}},
                                           {StateKey::Model("empty"), DType::kFloat32, {0}}};
  StateDict state = FullState(tensors);
  state.aliases.clear();
  const auto* values = static_cast<const float*>(state.FindTensor(StateKey::Model("w"))->shards[0].data.data());
  double sum = 0;
  for (int64_t i = 0; i < 1100 * 2049; ++i) sum += values[i];
  for (const int world_size : {1, 3}) {
    const std::string path = NewTestDirectory() + "/checkpoint";
    CheckpointDirectoryOptions options;
    options.type = StateDictType::kSharded;
    options.world_size = world_size;
    ASSERT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), options));
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
    ASSERT_OK_AND_ASSIGN(const auto statistics, ReadStatistics(*source));
    ASSERT_EQ(statistics.size(), 3);
    EXPECT_EQ(statistics.at(StateKey::Model("w")).numel, 1100 * 2049);
    EXPECT_EQ(statistics.at(StateKey::Model("w")).sum, sum);
    EXPECT_EQ(statistics.at(StateKey::Model("flag")).max, 1);
    EXPECT_EQ(statistics.at(StateKey::Model("empty")).numel, 0);
  }
}

}  // namespace
}  // namespace fsdp
