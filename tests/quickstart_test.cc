// SPDX-License-Identifier: Apache-2.0
//
// The quickstart, as a user runs it: the files it leaves, and that the loss falls.
#include <filesystem>
#include <string>
#include <vector>

#include "fsdp/base/child_process.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/process_handle.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/tests/train_gpt_run.h"
#include "fsdp/train/metrics.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(QuickstartTest, TrainsIsKilledContinuesVerifiesAndConverts) {
  const std::string directory = NewDirectory();
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("examples/quickstart"));
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, RunProgram({program, "--output_dir=" + directory}, absl::Minutes(8)));
  std::printf("%s\n", run.output.c_str());
  ASSERT_EQ(run.exit_status, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("train_gpt --nproc=4"), HasSubstr("kill -9"),
                                HasSubstr("train_gpt --nproc=3"), HasSubstr("ckpt verify"), HasSubstr("ckpt convert"),
                                HasSubstr("tools/report"), HasSubstr(directory)));
  EXPECT_THAT(ProcessesWith("--checkpoint_dir=" + directory), IsEmpty());

  EXPECT_THAT(ListCheckpoints(directory + "/checkpoints"), IsOkAndHolds(ElementsAre("step-00000120", "step-00000240")));
  EXPECT_TRUE(std::filesystem::exists(directory + "/checkpoints/step-00000120/rank-00003-of-00004.h5"));
  EXPECT_TRUE(std::filesystem::exists(directory + "/checkpoints/step-00000240/rank-00002-of-00003.h5"));
  ASSERT_OK_AND_ASSIGN(const std::string ckpt, FindRunfile("tools/ckpt"));
  ASSERT_OK_AND_ASSIGN(const ProgramResult diff, RunProgram({ckpt, "diff", directory + "/checkpoints/step-00000240",
                                                             directory + "/model.safetensors", "--model_only"},
                                                            absl::Minutes(1)));
  EXPECT_EQ(diff.exit_status, 0) << diff.output;

  ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> steps, ReadMetrics(directory + "/metrics.jsonl"));
  ASSERT_GT(steps.size(), 240u);  // the steps between the checkpoint and the kill occur twice
  EXPECT_EQ(steps.front().step, 0);
  EXPECT_EQ(steps.back().step, 239);
  EXPECT_LT(steps.back().loss, 0.6 * steps.front().loss);
  EXPECT_TRUE(steps[119].save && steps.back().save);

  const std::string page = ReadFile(directory + "/report.html");
  EXPECT_THAT(page, AllOf(HasSubstr("<title>restart at step 120</title>"), HasSubstr("class=\"save r0\""),
                          HasSubstr("data-curve=\"loss\""), HasSubstr("data-curve=\"hidden_share\"")));
  EXPECT_TRUE(std::filesystem::is_directory(directory + "/tensorboard"));
}

TEST(QuickstartTest, RefusesADirectoryThatIsNotEmpty) {
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("examples/quickstart"));
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, RunProgram({program, "--output_dir=/proc/self"}, absl::Minutes(1)));
  EXPECT_EQ(run.exit_status, 1);
  EXPECT_THAT(run.output, HasSubstr("is not empty"));
}

}  // namespace
}  // namespace fsdp
