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

TEST(LearningRateTest, FallsAsALineToMinLr) {
  const LearningRateOptions options = {
      .lr = 3.0, .min_lr = 1.0, .warmup_steps = 2, .steps = 10, .schedule = LrSchedule::kLinear};
  EXPECT_EQ(LearningRate(options, 1), 3.0);
  EXPECT_EQ(LearningRate(options, 2), 3.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 6), 2.0);
  EXPECT_EQ(LearningRate(options, 10), 1.0);
}

TEST(LearningRateTest, IsStableBeforeTheDecayOfWsdWhichEndsWithTheRun) {
  LearningRateOptions options = {
      .lr = 4.0, .min_lr = 0, .warmup_steps = 4, .steps = 40, .schedule = LrSchedule::kWsd, .decay_steps = 8};
  EXPECT_EQ(LearningRate(options, 0), 1.0);
  for (const int step : {4, 20, 32}) EXPECT_EQ(LearningRate(options, step), 4.0) << step;
  EXPECT_DOUBLE_EQ(LearningRate(options, 36), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 39), 0.5);
  options.decay_steps = 0;
  EXPECT_EQ(DecaySteps(options), 4) << "a tenth of the run";
  options.warmup_steps = 38;
  EXPECT_EQ(DecaySteps(options), 2) << "all that the warm-up leaves";
}

TEST(LearningRateTest, StaysAtMinLrAfterADecayThatIsShorterThanTheRun) {
  for (const LrSchedule schedule : {LrSchedule::kCosine, LrSchedule::kLinear}) {
    const LearningRateOptions options = {
        .lr = 3.0, .min_lr = 1.0, .warmup_steps = 2, .steps = 100, .schedule = schedule, .decay_steps = 10};
    EXPECT_DOUBLE_EQ(LearningRate(options, 7), 2.0);
    for (const int step : {12, 13, 99}) EXPECT_EQ(LearningRate(options, step), 1.0) << step;
  }
}

TEST(LearningRateTest, IgnoresMinLrIfTheScheduleIsConstant) {
  const LearningRateOptions options = {.lr = 3.0, .min_lr = 1.0, .steps = 10, .schedule = LrSchedule::kConstant};
  EXPECT_EQ(LearningRate(options, 9), 3.0);
}

TEST(LearningRateTest, ACosineBetweenEqualRatesIsCalledConstant) {
  EXPECT_EQ(LrScheduleName({.lr = 1, .min_lr = 1}), "constant");
  EXPECT_EQ(LrScheduleName({.lr = 1, .min_lr = 0}), "cosine");
  for (const char* name : {"constant", "cosine", "linear", "wsd"}) {
    EXPECT_EQ(LrScheduleName({.lr = 1, .min_lr = 0, .schedule = LrScheduleOf(name)}), name);
  }
}

}  // namespace
}  // namespace fsdp
