// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/step_counter.h"

#include <filesystem>
#include <string>

#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// The state that `text` in the trainer_state.json of a new checkpoint-N gives for `path` in it.
TrainerState StateOf(const std::string& text, const std::string& path = "") {
  const std::string directory = NewTestDirectory() + "/checkpoint-500";
  std::filesystem::create_directories(directory + "/pytorch_model_fsdp_0");
  std::filesystem::create_directories(directory + "/unet");
  WriteAll(directory + "/trainer_state.json", text);
  return ReadTrainerState(directory + path);
}

TEST(StepCounterTest, TheStateOfATrainerHasTheStepOfTheWeightsBesideIt) {
  constexpr char kText[] = R"({"best_metric": null, "epoch": 1.25, "global_step": 500, "log_history": []})";
  for (const char* path : {"", "/", "/model.safetensors", "/pytorch_model_fsdp_0", "/pytorch_model_fsdp_0/"}) {
    const TrainerState state = StateOf(kText, path);
    EXPECT_EQ(state.step, 500) << path;
    EXPECT_EQ(state.note, "step 500 is \"global_step\" of trainer_state.json") << path;
  }
  EXPECT_EQ(StateOf(kText, "/unet").step, -1);  // another model's
  EXPECT_THAT(StateOf(kText, "/unet").note, IsEmpty());
}

TEST(StepCounterTest, ALossThatWasNotFiniteDoesNotHideTheStep) {
  EXPECT_EQ(StateOf(R"({"global_step": 7, "log_history": [{"loss": NaN, "grad_norm": -Infinity}]})").step, 7);
}

TEST(StepCounterTest, AnEpochCountsIfThereIsNoStepAndItIsWhole) {
  EXPECT_EQ(StateOf(R"({"epoch": 3.0})").step, 3);
  const TrainerState half = StateOf(R"({"epoch": 3.5})");
  EXPECT_EQ(half.step, -1);
  EXPECT_THAT(half.note, HasSubstr("the step is unknown: trainer_state.json has no counter that is a whole number"));
}

TEST(StepCounterTest, ADictHasAStepUnderTheNameOfACounter) {
  for (const char* text : {R"({"global_step":15})", R"({"a":[{"step":15,"b":1}]})", R"({"epoch":15.0})",
                           R"({"iter_num":"15"})", R"({"timestamp":{"batch":15,"epoch":1}})"}) {
    EXPECT_TRUE(HasStepCounter(text, 15)) << text;
  }
  for (const char* text :
       {"15", R"({"global_step":150})", R"({"step":1.15})", R"({"lr":15,"step":16})", R"({":15})", R"(":15})", ""}) {
    EXPECT_FALSE(HasStepCounter(text, 15)) << text;
  }
}

TEST(StepCounterTest, AFileThatIsNotJsonIsANote) {
  const TrainerState state = StateOf("<!doctype html>");
  EXPECT_EQ(state.step, -1);
  EXPECT_THAT(state.note, HasSubstr("the step is unknown: trainer_state.json cannot be read: "));
}

}  // namespace
}  // namespace fsdp
