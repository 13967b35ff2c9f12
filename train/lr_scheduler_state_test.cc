// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/lr_scheduler_state.h"

#include <memory>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/train/checkpoint_saver.h"
#include "fsdp/train/trainer.h"
#include "fsdp/train/training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const LearningRateOptions kWsd = {.lr = 4.0,
                                  .min_lr = 0,
                                  .warmup_steps = 4,
                                  .steps = 40,
                                  .schedule = LrSchedule::kWsd,
                                  .decay_steps = 8,
                                  .is_named = true};

TEST(LrSchedulerStateTest, HasTheNamesOfPyTorchsSchedulers) {
  const nlohmann::json state = nlohmann::json::parse(LrSchedulerState(kWsd, 36, 2));
  EXPECT_EQ(state["last_epoch"], 36);
  EXPECT_EQ(state["_step_count"], 37);
  EXPECT_THAT(state["base_lrs"], ElementsAre(4.0, 4.0));
  EXPECT_THAT(state["_last_lr"], ElementsAre(2.0, 2.0)) << "the rate of the next step";
  EXPECT_EQ(state["schedule"], "wsd");
  EXPECT_EQ(state["lr_decay_steps"], 8);
}

TEST(LrSchedulerStateTest, TheSameCurveSaysNothingAndAnotherSaysBothRates) {
  const std::string state = LrSchedulerState(kWsd, 36, 2);
  EXPECT_THAT(DescribeSchedulerChange(kWsd, 36, state), IsEmpty());
  LearningRateOptions longer = kWsd;
  longer.steps = 80;
  EXPECT_THAT(DescribeSchedulerChange(longer, 36, state),
              ElementsAre(HasSubstr("step 36 has the learning rate 4, and would have had 2")));
  EXPECT_THAT(DescribeSchedulerChange(kWsd, 20, state),
              ElementsAre(HasSubstr("was at step 36; the schedule continues at step 20"), HasSubstr("would have")));
}

// Whatever a user's own scheduler wrote, the run continues, and says so.
TEST(LrSchedulerStateTest, AStateThatIsNotAsPyTorchsIsSaid) {
  for (const char* state : {"", "[]", "{}", R"({"last_epoch":1,"_last_lr":[]})", R"({"last_epoch":"1","_last_lr":[1]})",
                            R"({"last_epoch":1,"_last_lr":["x"]})"}) {
    EXPECT_THAT(DescribeSchedulerChange(kWsd, 1, state), ElementsAre(HasSubstr("is not known"))) << state;
  }
}

using LrSchedulerRunTest = TrainingFixture;

// The contents of the checkpoint that a run of 2 ranks with these options saves.
absl::StatusOr<StateDict> Saved(TrainOptions options, const std::string& directory) {
  options.checkpoint_dir = directory;
  FSDP_RETURN_IF_ERROR(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Create(options, group));
    return trainer->Train();
  }));
  return DescribeCheckpoint(directory + "/step-00000003");
}

TEST_F(LrSchedulerRunTest, ItsStateIsSavedOnlyIfTheScheduleIsNamed) {
  TrainOptions options = Options(3);
  ASSERT_OK_AND_ASSIGN(const StateDict plain, Saved(options, NewRunPath()));
  EXPECT_EQ(plain.FindText(LrSchedulerKey()), nullptr);
  EXPECT_EQ(plain.attributes.count("options.lr_schedule"), 0u) << "the bytes of before";
  EXPECT_EQ(plain.attributes.count("options.lr_decay_steps"), 0u);
  options.learning_rate = {
      .lr = 1e-2, .min_lr = 0, .steps = 3, .schedule = LrSchedule::kLinear, .decay_steps = 2, .is_named = true};
  ASSERT_OK_AND_ASSIGN(const StateDict linear, Saved(options, NewRunPath()));
  ASSERT_NE(linear.FindText(LrSchedulerKey()), nullptr);
  EXPECT_EQ(nlohmann::json::parse(*linear.FindText(LrSchedulerKey()))["last_epoch"], 3);
  EXPECT_EQ(linear.attributes.at("options.lr_schedule"), AttributeValue("linear"));
  EXPECT_EQ(linear.attributes.at("options.lr_decay_steps"), AttributeValue(2));
}

}  // namespace
}  // namespace fsdp
