// SPDX-License-Identifier: Apache-2.0
//
// Launchers inside launchers, as when a cluster's script already runs under one.
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::Not;

// The output of train_gpt on two steps, started by `launchers`: words before its own command.
std::string OutputOf(const Flags& launchers, const Flags& flags) {
  const absl::StatusOr<std::string> program = FindRunfile("train/train_gpt");
  EXPECT_OK(program);
  Flags run = SmallRun();
  run.erase(run.begin());  // --nproc
  const absl::StatusOr<std::unique_ptr<ChildProcess>> child =
      ChildProcess::Start(launchers + Flags{*program} + run + Flags{"--steps=2"} + flags);
  EXPECT_OK(child);
  if (!child.ok()) return "";
  EXPECT_THAT((*child)->Wait(absl::Minutes(1)), IsOkAndHolds(0)) << (*child)->output();
  return (*child)->output();
}

TEST(NestedLaunchTest, TrainGptUnderALauncherIsARankOfItsJobWhateverItsNproc) {
  ASSERT_OK_AND_ASSIGN(const std::string launch, FindRunfile("tools/launch"));
  const std::string output = OutputOf({launch, "--nproc=3", "--"}, {"--nproc=2"});
  EXPECT_THAT(output, HasSubstr("[rank 0] training with 3 ranks"));
  EXPECT_THAT(output, Not(HasSubstr("training with 2 ranks")));
}

// The two jobs share only the output: their ranks have the same numbers, and their jobs different names.
TEST(NestedLaunchTest, EachLauncherThatIsARankStartsAJobOfItsOwn) {
  ASSERT_OK_AND_ASSIGN(const std::string launch, FindRunfile("tools/launch"));
  const std::string output = OutputOf({launch, "--nproc=2", "--", launch, "--nproc=3", "--"}, {});
  EXPECT_THAT(output, HasSubstr("[rank 0] [rank 0] training with 3 ranks"));
  EXPECT_THAT(output, HasSubstr("[rank 1] [rank 0] training with 3 ranks"));
}

}  // namespace
}  // namespace fsdp
