// SPDX-License-Identifier: Apache-2.0
//
// Runs of train_gpt that find damaged checkpoints: they are skipped, reported, kept under other names and repaired, and
// never lost.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/tests/resume_run.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DamagedResumeTest : public ResumeRun {};

void Damage(const std::string& checkpoint) {
  std::fstream file(checkpoint + "/rank-00001-of-00002.h5", std::ios::in | std::ios::out);
  file.seekp(100000);
  file.put('\x5a');
  ASSERT_TRUE(file.good());
}

TEST_F(DamagedResumeTest, ADamagedCheckpointIsSkippedAndTheReasonIsReported) {
  TrainWell(Run(6, 2));
  Damage(checkpoint_dir_ + "/step-00000006");
  const std::string output = TrainWell(Run(8, 2));
  EXPECT_THAT(output, HasSubstr("skipped"));
  EXPECT_THAT(output, HasSubstr("rank-00001-of-00002.h5"));
  EXPECT_THAT(output, HasSubstr("when this run saves, it is kept under another name: to continue from it, stop and try "
                                "ckpt repair"));
  EXPECT_THAT(output, HasSubstr("step-00000004: 4 of 8 steps are done"));
  EXPECT_THAT(Checkpoints(), ElementsAre("step-00000002", "step-00000004", "step-00000006", "step-00000008"));
  ExpectAllVerify(checkpoint_dir_);
  ExpectSameBits(metrics_, Uninterrupted(SmallRun() + Flags{"--steps=8"}));
}

// For all flags: also if a step of the same number is saved, or a later one, and if only one step is to be kept.
TEST_F(DamagedResumeTest, ADamagedCheckpointIsRenamedAndCanBeRepaired) {
  for (const Flags& flags : {Flags{}, Flags{"--keep_last=1"}, Flags{"--async_checkpoint", "--keep_last=1"},
                             Flags{"--overwrite", "--state_dict_type=local"}}) {
    SCOPED_TRACE(absl::StrJoin(flags, " "));
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    TrainWell(Run(6, 2) + Flags{"--parity=1"});
    for (const char* step : {"/step-00000004", "/step-00000006"}) Damage(checkpoint_dir_ + step);
    const std::string output = TrainWell(Run(5, 2) + flags);
    for (const char* step : {"step-00000004", "step-00000006"}) {
      const std::string aside = absl::StrCat(checkpoint_dir_, "/", step, ".damaged");
      EXPECT_THAT(output, HasSubstr(absl::StrCat(step, " did not verify; it is kept as ", aside, ", ")));
      ASSERT_OK_AND_ASSIGN(const RepairReport report, RepairCheckpoint(aside));
      EXPECT_TRUE(report.is_whole());
      ASSERT_OK_AND_ASSIGN(const VerifyReport verified, VerifyCheckpoint(aside));
      EXPECT_THAT(verified.problems, IsEmpty());
    }
    EXPECT_EQ(Checkpoints().back(), "step-00000005");
    ExpectAllVerify(checkpoint_dir_);
    EXPECT_THAT(TrainWell(Run(7, 0) + Flags{"--resume=" + checkpoint_dir_ + "/step-00000006.damaged"}),
                HasSubstr("6 of 7 steps are done"));
    ExpectSameBits(metrics_, Uninterrupted(SmallRun() + Flags{"--steps=7"}));
    EXPECT_THAT(TrainWell(Run(8, 0)), HasSubstr("step-00000006.damaged, "));
  }
}

TEST_F(DamagedResumeTest, StartingAnewBecauseNothingVerifiesKeepsTheDamagedSteps) {
  TrainWell(Run(2, 2));
  Damage(checkpoint_dir_ + "/step-00000002");
  ASSERT_OK_AND_ASSIGN(const ProgramResult refused, Train(Run(2, 2)));
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.output, HasSubstr("no checkpoint verifies"));
  EXPECT_THAT(refused.output, HasSubstr("pass --overwrite to start anew and keep them under other names"));
  EXPECT_THAT(TrainWell(Run(2, 2) + Flags{"--overwrite"}), HasSubstr("starting at step 0"));
  ExpectAllVerify(checkpoint_dir_);
  EXPECT_TRUE(std::filesystem::exists(checkpoint_dir_ + "/step-00000002.damaged/manifest.json"));
}

TEST_F(DamagedResumeTest, ADamagedCheckpointThatIsBeingRepairedKeepsItsName) {
  TrainWell(Run(6, 2));
  Damage(checkpoint_dir_ + "/step-00000006");
  ASSERT_OK_AND_ASSIGN(DirectoryLock lock, DirectoryLock::Take(checkpoint_dir_ + "/step-00000006"));
  const std::string output = TrainWell(Run(5, 0) + Flags{"--keep_last=1"});
  EXPECT_THAT(output, HasSubstr("step-00000006 did not verify and keeps its name for now: "));
  EXPECT_THAT(Checkpoints(), ElementsAre("step-00000002", "step-00000004", "step-00000005", "step-00000006"))
      << "nothing is deleted because of a step that is not good";
  ASSERT_OK_AND_ASSIGN(const ProgramResult in_the_way, Train(Run(6, 0)));
  EXPECT_EQ(in_the_way.exit_status, 75) << "once it is repaired, the same command continues";
  EXPECT_THAT(in_the_way.output, HasSubstr("step-00000006 is being changed by process"));
  lock.Release();
  TrainWell(Run(6, 0) + Flags{"--keep_last=1"});
  EXPECT_THAT(Checkpoints(), ElementsAre("step-00000006"));
  ExpectAllVerify(checkpoint_dir_);
}

}  // namespace
}  // namespace fsdp
