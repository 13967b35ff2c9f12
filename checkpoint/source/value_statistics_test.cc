// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/value_statistics.h"

#include <cmath>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/save/hdf5_sink.h"
#include "fsdp/checkpoint/test_state.h"
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

TEST(ValueStatisticsTest, TheHistogramCountsOctavesBySign) {
  const ValueStatistics statistics = Of({1, 1.5, -2, -3.9f, 1e-30f, -1e30f});
  const int one = -ValueStatistics::kLowestExponent;
  EXPECT_EQ(statistics.positive[one], 2);
  EXPECT_EQ(statistics.negative[one + 1], 2);
  EXPECT_EQ(statistics.positive.front(), 1);
  EXPECT_EQ(statistics.negative.back(), 1);
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
