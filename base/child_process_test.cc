// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "fsdp/base/process_handle.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(ChildProcessTest, CollectsOutputAndExitStatus) {
  ASSERT_OK_AND_ASSIGN(const ProgramResult result,
                       RunProgram({"/bin/sh", "-c", "echo out; echo err >&2; exit 3"}, absl::Seconds(30)));
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_EQ(result.output, "out\nerr\n");
}

TEST(ChildProcessTest, CollectsStderrApart) {
  ASSERT_OK_AND_ASSIGN(const ProgramResult result, RunProgram({"sh", "-c", "echo out; echo err >&2"}, absl::Seconds(30),
                                                              {.errors = ChildOutput::Text()}));
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.errors, "err\n");
  EXPECT_GT(result.peak_bytes, 0);
}

TEST(ChildProcessTest, LinesComeOneByOneAndTheLastNeedsNoNewline) {
  std::vector<std::string> lines;
  const ChildOutput output = ChildOutput::Lines([&](absl::string_view line) { lines.emplace_back(line); });
  ASSERT_OK(RunProgram({"sh", "-c", "printf 'one\\n\\ntwo'; echo err >&2"}, absl::Seconds(30),
                       {.output = output, .errors = ChildOutput::File("/dev/null")}));
  EXPECT_THAT(lines, ElementsAre("one", "", "two"));
}

TEST(ChildProcessTest, OutputGoesToAFile) {
  const std::string path = testing::TempDir() + "/child_process_output";
  ASSERT_OK(RunProgram({"sh", "-c", "echo out; echo err >&2"}, absl::Seconds(30), {.output = ChildOutput::File(path)}));
  EXPECT_EQ(std::filesystem::file_size(path), 8u);
  std::filesystem::remove(path);
}

TEST(ChildProcessTest, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_THAT(ChildProcess::Start({"true"}, {.output = ChildOutput::File("/no/such/file")}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/file")));
}

TEST(ChildProcessTest, InputComesFromADescriptor) {
  const FileDescriptor input(open("/proc/self/comm", O_RDONLY | O_CLOEXEC));
  ASSERT_OK_AND_ASSIGN(const ProgramResult result, RunProgram({"cat"}, absl::Seconds(30), {.input_fd = input.get()}));
  EXPECT_THAT(result.output, Not(IsEmpty()));
}

TEST(ChildProcessTest, UnreadOutputComesWhole) {
  ASSERT_OK_AND_ASSIGN(const ProgramResult result, RunProgram({"seq", "1", "50000"}, absl::Seconds(30)));
  EXPECT_EQ(result.output.size(), 288894u);
}

TEST(ChildProcessTest, RunsInItsWorkingDirectory) {
  ASSERT_OK_AND_ASSIGN(const ProgramResult result,
                       RunProgram({"sh", "-c", "pwd"}, absl::Seconds(30), {.working_directory = "/proc"}));
  EXPECT_EQ(result.output, "/proc\n");
}

TEST(ChildProcessTest, AChildDiesWithTheThreadThatStartedIt) {
  std::unique_ptr<ChildProcess> child;
  std::thread([&] { child = *ChildProcess::Start({"sleep", "600"}); }).join();
  EXPECT_THAT(child->Wait(absl::Seconds(30)), IsOkAndHolds(128 + SIGKILL));
  EXPECT_EQ(child->exit_status()->ToString(), "was killed by signal 9 (Killed)");
}

TEST(ChildProcessTest, DescendantsInTheGroupEndWithTheChild) {
  ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Start({"sh", "-c", "sleep 600 & echo $!; read go"}));
  ASSERT_OK(child->WaitForOutput("\n", absl::Seconds(30)));
  ASSERT_OK_AND_ASSIGN(const ProcessHandle descendant, ProcessHandle::Open(std::stoi(child->output())));
  ASSERT_THAT(child->Wait(absl::Seconds(30)), IsOkAndHolds(1));
  for (int i = 0; i < 30000 && descendant.IsAlive(); ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(descendant.IsAlive());
}

TEST(ChildProcessTest, ASignalIs128PlusItsNumber) {
  ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Start({"/bin/sleep", "600"}));
  child->Signal(SIGKILL);
  EXPECT_THAT(child->Wait(absl::Seconds(30)), IsOkAndHolds(128 + SIGKILL));
}

TEST(ChildProcessTest, WaitGivesUpAtItsTimeout) {
  ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Start({"/bin/sleep", "600"}));
  EXPECT_THAT(child->Wait(absl::Milliseconds(1)), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(ChildProcessTest, SetsAndUnsetsVariables) {
  ASSERT_OK_AND_ASSIGN(const ProgramResult result,
                       RunProgram({"/bin/sh", "-c", "echo $A-${PATH:-none}"}, absl::Seconds(30),
                                  {.environment = {{"A", "1"}}, .unset = {"PATH"}}));
  EXPECT_THAT(result.output, HasSubstr("1-"));
}

TEST(ChildProcessTest, WaitForOutputSeesItBeforeTheEnd) {
  ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Start({"/bin/sh", "-c", "echo ready; exec sleep 600"}));
  EXPECT_OK(child->WaitForOutput("ready", absl::Seconds(30)));
}

TEST(ChildProcessTest, FindsProcessesByTheirCommandLine) {
  const std::string text = absl::StrCat("started by test ", getpid());
  {
    ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Start({"/bin/sh", "-c", "echo ready; kill -STOP $$", text}));
    ASSERT_OK(
        child->WaitForOutput("ready", absl::Seconds(30)));  // a process that is just starting has no arguments yet
    EXPECT_THAT(ProcessesWith(text), ElementsAre(child->pid()));
  }
  EXPECT_THAT(ProcessesWith(text), IsEmpty());
}

TEST(ChildProcessTest, NamesAProgramThatCannotBeRun) {
  EXPECT_THAT(ChildProcess::Start({"/no/such/program"}),
              StatusIs(absl::StatusCode::kNotFound, "program \"/no/such/program\" does not exist"));
  EXPECT_THAT(ChildProcess::Start({"/dev/null"}),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("is not an executable file")));
  EXPECT_THAT(ChildProcess::Start({"sh"}, {.working_directory = "/no/such/directory"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot execute")));
}

// The loop starts no program, because a shell blocks all signals while it starts one.
TEST(ChildProcessTest, AChildCatchesTheSignalsThatItHasHandlersFor) {
  ASSERT_OK_AND_ASSIGN(const auto child,
                       ChildProcess::Start({"sh", "-c", "trap : TERM; trap '' USR1; echo ready; while :; do :; done"}));
  ASSERT_OK(child->WaitForOutput("ready", absl::Seconds(20)));
  EXPECT_TRUE(child->Catches(SIGTERM));
  EXPECT_FALSE(child->Catches(SIGUSR1)) << "ignored";
  EXPECT_FALSE(child->Catches(SIGUSR2));
}

// Like a program that reads its signals from a signalfd.
TEST(ChildProcessTest, AChildCatchesTheSignalsThatItBlocks) {
  ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Start({"env", "--block-signal=TERM", "sleep", "1000"}));
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  while (!child->Catches(SIGTERM) && SteadyNow() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(child->Catches(SIGTERM));
  EXPECT_FALSE(child->Catches(SIGUSR2));
}

}  // namespace
}  // namespace fsdp
