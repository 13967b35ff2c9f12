// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/subprocess.h"

#include <signal.h>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SubprocessTest, CollectsOutputAndExitStatus) {
  ASSERT_OK_AND_ASSIGN(const ProgramResult result,
                       RunProgram({"/bin/sh", "-c", "echo out; echo err >&2; exit 3"}, absl::Seconds(30)));
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_EQ(result.output, "out\nerr\n");
}

TEST(SubprocessTest, ASignalIs128PlusItsNumber) {
  ASSERT_OK_AND_ASSIGN(const auto child, Subprocess::Start({"/bin/sleep", "600"}));
  child->Signal(SIGKILL);
  EXPECT_THAT(child->Wait(absl::Seconds(30)), IsOkAndHolds(128 + SIGKILL));
}

TEST(SubprocessTest, WaitGivesUpAtItsTimeout) {
  ASSERT_OK_AND_ASSIGN(const auto child, Subprocess::Start({"/bin/sleep", "600"}));
  EXPECT_THAT(child->Wait(absl::Milliseconds(1)), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(SubprocessTest, SetsAndUnsetsVariables) {
  ASSERT_OK_AND_ASSIGN(const ProgramResult result,
                       RunProgram({"/bin/sh", "-c", "echo $A-${PATH:-none}"}, absl::Seconds(30),
                                  {.environment = {{"A", "1"}}, .unset = {"PATH"}}));
  EXPECT_THAT(result.output, HasSubstr("1-"));
}

TEST(SubprocessTest, WaitForOutputSeesItBeforeTheEnd) {
  ASSERT_OK_AND_ASSIGN(const auto child, Subprocess::Start({"/bin/sh", "-c", "echo ready; exec sleep 600"}));
  EXPECT_OK(child->WaitForOutput("ready", absl::Seconds(30)));
}

TEST(SubprocessTest, FindsProcessesByTheirCommandLine) {
  {
    ASSERT_OK_AND_ASSIGN(const auto child,
                         Subprocess::Start({"/bin/sh", "-c", "echo ready; kill -STOP $$", "found-by-this"}));
    ASSERT_OK(
        child->WaitForOutput("ready", absl::Seconds(30)));  // a process that is just starting has no arguments yet
    EXPECT_THAT(ProcessesWith("found-by-this"), ElementsAre(child->pid()));
  }
  EXPECT_THAT(ProcessesWith("found-by-this"), IsEmpty());
}

TEST(SubprocessTest, NamesAProgramThatCannotBeRun) {
  EXPECT_THAT(Subprocess::Start({"/no/such/program"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/program")));
}

}  // namespace
}  // namespace fsdp
