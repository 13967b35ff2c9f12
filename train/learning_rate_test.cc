// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/learning_rate.h"

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(LearningRateTest, IsConstantWhenMinLrIsLr) {
  const LearningRateOptions options = {.lr = 3e-4, .min_lr = 3e-4, .warmup_steps = 0, .steps = 50};
  for (int step : {0, 1, 49}) EXPECT_EQ(LearningRate(options, step), 3e-4);
}

TEST(LearningRateTest, WarmsUpLinearlyAndReachesLrAtItsLastWarmUpStep) {
  const LearningRateOptions options = {.lr = 0.5, .min_lr = 0.5, .warmup_steps = 4, .steps = 10};
  EXPECT_EQ(LearningRate(options, 0), 0.125);
  EXPECT_EQ(LearningRate(options, 3), 0.5);
  EXPECT_EQ(LearningRate(options, 4), 0.5);
}

TEST(LearningRateTest, FallsAsACosineToMinLr) {
  const LearningRateOptions options = {.lr = 3.0, .min_lr = 1.0, .warmup_steps = 2, .steps = 10};
  EXPECT_EQ(LearningRate(options, 2), 3.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 6), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 10), 1.0);
}

TEST(LearningRateTest, WarmUpLongerThanTheRunNeverDividesByZero) {
  const LearningRateOptions options = {.lr = 1.0, .min_lr = 0.0, .warmup_steps = 5, .steps = 5};
  EXPECT_EQ(LearningRate(options, 4), 1.0);
  EXPECT_EQ(LearningRate(options, 5), 1.0);
}

}  // namespace
}  // namespace fsdp
