// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/training_step.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/state/tree_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::Contains;

// The step of {"model": ..., `members`}.
std::optional<int64_t> StepOf(const std::string& members) {
  const auto state = TestTree(R"({"model": {"w": "float32[2]"}, )" + members + "}").State();
  EXPECT_OK(state.status()) << members;
  return state.ok() ? state->step : std::nullopt;
}

TEST(TrainingStepTest, ACounterIsAWholeNumberInAnyForm) {
  for (const char* value :
       {"7", "7.0", R"("7")", R"("int64[]=7")", R"("int32[1]=7")", R"("int16[]=7")", R"("int8[]=7")", R"("uint8[]=7")",
        R"("uint16[]=7")", R"("uint32[]=7")", R"("uint64[]=7")", R"("float32[]=7")", R"("bfloat16[1,1]=7")"}) {
    EXPECT_EQ(StepOf(R"("step": )" + std::string(value)), 7) << value;
  }
}

TEST(TrainingStepTest, WhatIsNoWholeNumberIsNoStep) {
  for (const char* value : {"-1", "7.5", "true", "null", "[7]", R"("7a")", R"("")", R"("-7")", R"("int64[]=-7")",
                            R"("int64[2]=7")", R"("float32[]=0.5")", R"("bool[]=1")", "1e300"}) {
    EXPECT_EQ(StepOf(R"("step": )" + std::string(value)), std::nullopt) << value;
  }
}

TEST(TrainingStepTest, NamesCountInTheirOrderAndOuterOnesFirst) {
  EXPECT_EQ(StepOf(R"("epoch": 2, "global_step": 40, "step": 41)"), 41);
  EXPECT_EQ(StepOf(R"("epoch": 2, "iter_num": "400")"), 400);
  EXPECT_EQ(StepOf(R"("iteration": 6, "train_state": {"step": 60})"), 6);
  EXPECT_EQ(StepOf(R"("epoch": 2, "train_state": {"step": "int32[]=60"})"), 60);
  EXPECT_EQ(StepOf(R"("epoch": 2)"), 2);
  EXPECT_EQ(StepOf(R"("sampler": {"epoch": 2})"), std::nullopt);
  EXPECT_EQ(StepOf(R"("callbacks": [{"step": 2}])"), std::nullopt);
  EXPECT_EQ(StepOf(R"("trainer_state": {"global_step": 500, "epoch": 1.5})"), 500);
}

TEST(TrainingStepTest, TheCounterOfASchedulerIsNoStep) {
  EXPECT_EQ(StepOf(R"("lr_scheduler": {"step": 5, "last_epoch": 5, "_step_count": 6})"), std::nullopt);
  EXPECT_EQ(StepOf(R"("scheduler": {"iter": "int64[]=5"}, "train_state": {"iter": 4})"), 4);
  EXPECT_EQ(StepOf(R"("trainer": {"LRScheduler": {"num_updates": 5}, "epoch": 1}, "epoch": 2)"), 2);
}

TEST(TrainingStepTest, TwoThatDifferMakeItUnknown) {
  EXPECT_EQ(StepOf(R"("a": {"step": 5}, "b": {"step": 5})"), 5);
  const TestTree tree(R"({"model": {"w": "float32[2]"}, "a": {"step": 5}, "b": {"step": 6}})");
  ASSERT_OK_AND_ASSIGN(const TorchState state, tree.State());
  EXPECT_EQ(state.step, std::nullopt);
  EXPECT_THAT(state.layout.notes, Contains("the step is unknown: \"a.step\" and \"b.step\" differ"));
  EXPECT_EQ(StepOf(R"("a": {"step": 5}, "b": {"step": 6}, "step": 7)"), 7);
}

TEST(TrainingStepTest, AnotherNameThanStepIsNoted) {
  ASSERT_OK_AND_ASSIGN(const TorchState state,
                       TestTree(R"({"model": {"w": "float32[2]"}, "epoch": "int64[]=3"})").State());
  EXPECT_THAT(state.layout.notes, Contains("step 3 is \"epoch\""));
  EXPECT_TRUE(state.contents.contains(StateKey::Extra("epoch")));  // it stays what it was
}

TEST(TrainingStepTest, CountersThatAProgramKeepsElsewhereAreKnown) {
  const std::string history =
      R"("optimizer_history": [{"num_updates": 10, "optimizer_name": "Adam"}, {"num_updates": 25}])";
  EXPECT_EQ(StepOf(history), 25) << "fairseq";
  EXPECT_EQ(StepOf(history + R"(, "extra_state": {"num_updates": 26, "train_iterator": {"epoch": 3}})"), 26);
  // With a tensor inside it is a branch of the tree and no value.
  EXPECT_EQ(StepOf(R"("optimizer_history": [{"num_updates": 10},
                      {"lr_scheduler_state": {"step": 9, "best": "float32[]=1"}, "num_updates": 25}], "epoch": 2)"),
            25);
  EXPECT_EQ(StepOf(R"("optimizer_history": [{"num_updates": "int64[]=25"}])"), 25);
  EXPECT_EQ(StepOf(R"("optimizer_history": [], "epoch": 2)"), 2);
  EXPECT_EQ(StepOf(R"("history": [{"num_updates": 10}])"), std::nullopt);
  EXPECT_EQ(StepOf(R"("state": {"timestamp": {"iteration": 0, "epoch": 1, "batch": 100, "batch_in_epoch": 4}})"), 100)
      << "Composer";
  EXPECT_EQ(StepOf(R"("state": {"timestamp": {"iteration": 9, "batch": 100}})"), 9);
  ASSERT_OK_AND_ASSIGN(const TorchState composer,
                       TestTree(R"({"state": {"model": {"w": "float32[2]"}, "run_name": "a", "timestamp":
                           {"iteration": 0, "epoch": 1, "batch": 100, "batch_in_epoch": 4}}, "rng": []})")
                           .State());
  EXPECT_EQ(composer.step, 100);
  EXPECT_EQ(StepOf(R"("number_training_updates": 41, "epoch": 2)"), 41) << "ParlAI";
  const std::string reporter = R"("reporter": {"stats": {"1": {"train": {}}}, "epoch": 7})";
  EXPECT_EQ(StepOf(reporter), 7) << "ESPnet";
  EXPECT_EQ(StepOf(reporter + R"(, "train_state": {"step": 60})"), 60);
  EXPECT_EQ(StepOf(R"("reporter": {"epoch": 7})"), std::nullopt);
  ASSERT_OK_AND_ASSIGN(const TorchState state,
                       TestTree(absl::StrCat(R"({"model": {"w": "float32[2]"}, )", history, "}")).State());
  EXPECT_THAT(state.layout.notes, Contains("step 25 is \"optimizer_history.1.num_updates\""));
}

// The state of an optimizer has steps of its own.
TEST(TrainingStepTest, StepsOfParametersDoNotCount) {
  EXPECT_EQ(StepOf(R"("optimizer": {"state": {"0": {"step": 3}, "1": {"step": 3}},
                                    "param_groups": [{"params": [0, 1]}]})"),
            std::nullopt);
  TorchStateOptions options;
  options.map = {*ParseTensorRole("opt=extra")};
  for (const char* step : {"3", R"("float32[]=3")"}) {
    const TestTree tree(absl::StrCat(R"({"model": {"w": "float32[2]"}, "epoch": 2, "opt": {"state": {"0": {"step": )",
                                     step, R"(}}, "param_groups": [{"params": [0]}]}})"));
    ASSERT_OK_AND_ASSIGN(const TorchState state, tree.State(options));
    EXPECT_EQ(state.step, 2) << step;
  }
}

}  // namespace
}  // namespace fsdp
