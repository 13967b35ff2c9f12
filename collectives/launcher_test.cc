// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/launcher.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "fsdp/base/environment_testutil.h"
#include "fsdp/base/process_handle.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/job/store_member.h"
#include "fsdp/collectives/job/store_server.h"
#include "fsdp/collectives/self_launch.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

LaunchOptions Shell(int nproc, const std::string& script) {
  LaunchOptions options;
  options.nproc = nproc;
  options.command = {"sh", "-c", script};
  return options;
}

// The lines that this process writes to stdout during the launch.
std::vector<std::string> LinesOf(const LaunchOptions& options) {
  testing::internal::CaptureStdout();
  EXPECT_OK(Launch(options).status());
  return absl::StrSplit(testing::internal::GetCapturedStdout(), '\n', absl::SkipEmpty());
}

std::string NewDirectory() {
  std::string path = absl::StrCat(testing::TempDir(), "/launcher.XXXXXX");
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

// The number that a script wrote to `path`, after the file has appeared.
int AwaitNumber(const std::string& path) {
  int number = 0;
  while (!(std::ifstream(path) >> number)) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return number;
}

void AwaitEnd(const ProcessHandle& process) {
  while (process.IsAlive()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST(LauncherTest, RanksGetTorchrunsVariables) {
  EXPECT_THAT(
      LinesOf(Shell(2, "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR; test $MASTER_PORT -gt 0")),
      UnorderedElementsAre("[rank 0] 0 2 0 2 127.0.0.1", "[rank 1] 1 2 1 2 127.0.0.1"));
}

int FreePort() { return ListeningPort(ListenTcp("127.0.0.1", 0)->get()).value(); }

LaunchOptions Node(int node_rank, int port, const std::string& script) {
  LaunchOptions options = Shell(2, script);
  options.nnodes = 3;
  options.node_rank = node_rank;
  options.master_addr = "localhost";
  options.master_port = port;
  return options;
}

TEST(LauncherTest, RanksOfSeveralHostsAreNumberedByHost) {
  const ScopedVariable inherited("FSDP_LAUNCH_ID", "1.1");
  const std::string script =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT launch=$FSDP_LAUNCH_ID "
      "fd=${FSDP_STORE_FD:+yes}";
  const int port = FreePort();
  EXPECT_THAT(LinesOf(Node(0, port, script)),
              UnorderedElementsAre(absl::StrCat("[rank 0] 0 6 0 2 localhost ", port, " launch= fd=yes"),
                                   absl::StrCat("[rank 1] 1 6 1 2 localhost ", port, " launch= fd=")));
  EXPECT_THAT(LinesOf(Node(2, port, script)),
              UnorderedElementsAre(absl::StrCat("[rank 4] 4 6 0 2 localhost ", port, " launch= fd="),
                                   absl::StrCat("[rank 5] 5 6 1 2 localhost ", port, " launch= fd=")));
}

TEST(LauncherTest, AFailedRankOfALaterHostIsNamedByItsNumberInTheJob) {
  testing::internal::CaptureStdout();
  ASSERT_OK_AND_ASSIGN(const LaunchResult result,
                       Launch(Node(1, 29500, "test $RANK = 2 || { echo last; exit 3; }; sleep 60")));
  testing::internal::GetCapturedStdout();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.failed_rank, 3);
  EXPECT_EQ(result.description, "rank 3 of 6 exited with status 3");
  EXPECT_THAT(result.last_lines, ElementsAre("last"));
}

TEST(LauncherTest, HostsThatDoNotFitAreRefused) {
  for (LaunchOptions options : {Node(3, 29500, "true"), Node(-1, 29500, "true"), Node(0, 65536, "true")}) {
    EXPECT_THAT(Launch(options), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(Launch(Node(0, 0, "true")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a master port")));
  LaunchOptions nameless = Node(1, 29500, "true");
  nameless.master_addr.clear();
  EXPECT_THAT(Launch(nameless), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a master address")));
}

TEST(LauncherTest, APortThatAnotherJobHasIsNamedWithThatJobAndItsProcess) {
  ASSERT_OK_AND_ASSIGN(FileDescriptor listener, ListenTcp("127.0.0.1", 0));
  LaunchOptions options = Shell(1, "true");
  options.master_port = ListeningPort(listener.get()).value();
  std::vector<FileDescriptor> listeners;
  listeners.push_back(std::move(listener));
  const StoreMember holder = StoreMember::OfThisProcess("run 5", 0, 4);
  ASSERT_OK_AND_ASSIGN(const auto server, StoreServer::Start(std::move(listeners), holder));
  EXPECT_THAT(Launch(options),
              StatusIs(absl::StatusCode::kUnavailable,
                       absl::StrCat("cannot listen on 127.0.0.1:", options.master_port,
                                    ": Address already in use; job \"run 5\" (", holder.ToString(), ") holds it")));
}

TEST(LauncherTest, APortThatAnotherProgramHasIsNamedBeforeAnyRankStarts) {
  ASSERT_OK_AND_ASSIGN(const FileDescriptor holder, ListenTcp("127.0.0.1", 0));
  LaunchOptions options = Shell(1, "true");
  options.master_port = ListeningPort(holder.get()).value();
  EXPECT_THAT(Launch(options),
              StatusIs(absl::StatusCode::kUnavailable,
                       absl::StrCat("cannot listen on 127.0.0.1:", options.master_port,
                                    ": Address already in use; the program that holds it is no job's store: \"ss "
                                    "-ltnp\" lists it")));
}

TEST(LauncherTest, OnlyRank0GetsTheListeningSocket) {
  const ScopedVariable outer("FSDP_STORE_FD", "99");
  EXPECT_THAT(LinesOf(Shell(2, "if test -n \"$FSDP_STORE_FD\"; then readlink /proc/self/fd/$FSDP_STORE_FD; fi")),
              ElementsAre(HasSubstr("[rank 0] socket:")));
}

TEST(LauncherTest, RanksGetTheNameOfTheirJobAndNotThatOfAnother) {
  const ScopedVariable outer("FSDP_LAUNCH_ID", "1.1");
  const ScopedVariable torchrun("TORCHELASTIC_RUN_ID", "outer");
  LaunchOptions options =
      Shell(2, "echo $FSDP_RUN_ID ${FSDP_LAUNCH_ID%.*} = $MASTER_PORT ${TORCHELASTIC_RUN_ID-unset}");
  options.run_id = "name";
  options.prefix_output = false;
  for (const std::string& line : LinesOf(options)) {
    EXPECT_THAT(line, testing::MatchesRegex("name ([0-9]+) = [0-9]+ unset"));
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    EXPECT_EQ(words[1], words[3]);
  }
}

TEST(LauncherTest, OutputIsPrefixedByLine) {
  EXPECT_THAT(LinesOf(Shell(1, "printf 'one\\ntwo\\n\\nno end'; cat")),
              ElementsAre("[rank 0] one", "[rank 0] two", "[rank 0] ", "[rank 0] no end"));
}

TEST(LauncherTest, OutputIsSharedWithoutPrefix) {
  LaunchOptions options = Shell(2, "echo line");
  options.prefix_output = false;
  EXPECT_THAT(LinesOf(options), ElementsAre("line", "line"));
}

TEST(LauncherTest, LargeOutputComesWhole) { EXPECT_EQ(LinesOf(Shell(3, "seq 1 20000")).size(), 60000u); }

TEST(LauncherTest, TheFirstFailureIsNamedWithItsLastLines) {
  const absl::Time start = SteadyNow();
  ASSERT_OK_AND_ASSIGN(const LaunchResult result,
                       Launch(Shell(3, "if test $RANK = 1; then seq 1 30; exit 7; fi; sleep 1000")));
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.failed_rank, 1);
  EXPECT_EQ(result.description, "rank 1 of 3 exited with status 7");
  EXPECT_EQ(result.last_lines.size(), 20u);
  EXPECT_EQ(result.last_lines.front(), "11");
  EXPECT_EQ(result.last_lines.back(), "30");
  EXPECT_LT(SteadyNow() - start, absl::Seconds(60));
}

// Like a job whose ranks all lose a peer of another host at the same time, and one of them prints it.
TEST(LauncherTest, TheRanksThatAFailureLeavesMaySayWhyTheyEnd) {
  const std::string script = "trap 'exit 0' TERM; if test $RANK = 1; then exit 75; fi; sleep 0.2; echo reason; exit 75";
  EXPECT_THAT(LinesOf(Shell(2, script)), ElementsAre("[rank 0] reason"));
}

TEST(LauncherTest, TheLastLinesHaveWhatWasWrittenToStderr) {
  ASSERT_OK_AND_ASSIGN(const LaunchResult result, Launch(Shell(1, "echo said; echo broken >&2; exit 1")));
  EXPECT_THAT(result.last_lines, UnorderedElementsAre("said", "broken"));
}

TEST(LauncherTest, AKilledRankIsNamedWithItsSignal) {
  ASSERT_OK_AND_ASSIGN(const LaunchResult result,
                       Launch(Shell(3, "if test $RANK = 2; then kill -9 $$; fi; sleep 1000")));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_EQ(result.failed_rank, 2);
  EXPECT_EQ(result.description, "rank 2 of 3 was killed by signal 9 (Killed)");
}

TEST(LauncherTest, RanksThatIgnoreSigtermAreKilledAfterTheGrace) {
  LaunchOptions options = Shell(2, "trap '' TERM; if test $RANK = 0; then exit 1; fi; while true; do sleep 1000; done");
  options.grace = absl::Milliseconds(100);
  ASSERT_OK_AND_ASSIGN(const LaunchResult result, Launch(options));
  EXPECT_EQ(result.exit_code, 1);
}

TEST(LauncherTest, TimeIsUp) {
  LaunchOptions options = Shell(2, "if test $RANK = 0; then exit 0; fi; exec sleep 1000");
  options.timeout = absl::Milliseconds(300);
  ASSERT_OK_AND_ASSIGN(const LaunchResult result, Launch(options));
  EXPECT_EQ(result.exit_code, 124);
  EXPECT_EQ(result.failed_rank, -1);
  EXPECT_EQ(result.description, "the job took longer than 300ms; ranks that still ran: 1");
}

TEST(LauncherTest, MoreRanksThanTheHostHoldsAreRefused) {
  EXPECT_THAT(Launch(Shell(100000, "true")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nproc is 100000")));
}

TEST(LauncherTest, BadOptionsAreRefused) {
  EXPECT_THAT(Launch(Shell(0, "true")), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nproc is 0")));
  EXPECT_THAT(Launch({.nproc = 1}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Launch({.nproc = 1, .command = {"no-such-program"}}),
              StatusIs(absl::StatusCode::kNotFound, "program \"no-such-program\" does not exist"));
  EXPECT_THAT(Launch({.nproc = 1, .command = {"/no/such/program"}}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Launch({.nproc = 1, .command = {"/dev/null"}}), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(LauncherTest, AProgramThatCannotBeExecutedIsAnError) {
  const std::string path = absl::StrCat(NewDirectory(), "/script");
  std::ofstream(path) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  EXPECT_THAT(Launch({.nproc = 2, .command = {path}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot execute")));
}

// The launcher in its own process, so that it can be signalled. Its description goes to the file `report`.
int ForkLauncher(const LaunchOptions& options, const std::string& report = "/dev/null") {
  const int pid = fork();
  if (pid == 0) {
    const absl::StatusOr<LaunchResult> result = Launch(options);
    std::ofstream(report) << (result.ok() ? result->description : "") << std::flush;
    _exit(result.ok() ? result->exit_code : 99);
  }
  return pid;
}

TEST(LauncherTest, SignalsAreForwarded) {
  const std::string directory = NewDirectory();
  const ScopedVariable for_scripts("DIR", directory);
  const int launcher =
      ForkLauncher(Shell(2,
                         "trap 'echo 1 > $DIR/usr1.$RANK' USR1; trap 'exit 5' TERM; echo 1 > $DIR/ready.$RANK;"
                         "while true; do sleep 0.01; done"));
  for (const char* name : {"/ready.0", "/ready.1"}) {
    AwaitNumber(directory + name);
  }
  kill(launcher, SIGUSR1);
  for (const char* name : {"/usr1.0", "/usr1.1"}) {
    AwaitNumber(directory + name);
  }
  kill(launcher, SIGTERM);
  int status = 0;
  waitpid(launcher, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 5);
}

// The end of a launcher of two ranks that receives `signals`, 300 ms apart, after its ranks have written that they are
// ready.
struct End {
  int exit_code = 0;
  std::string description = {};
  absl::Duration after = {};  // since the first signal
};

End EndAfter(
    const std::string& script, const std::vector<int>& signals, absl::Duration stop_grace,
    const std::function<void(int rank_pid)>& before = [](int) {}) {
  const std::string directory = NewDirectory();
  const ScopedVariable for_scripts("DIR", directory);
  LaunchOptions options = Shell(2, absl::StrCat("echo $$ > $DIR/tmp.$RANK; ", script));
  options.stop_grace = stop_grace;
  const int launcher = ForkLauncher(options, directory + "/description");
  before(AwaitNumber(directory + "/ready.1"));
  AwaitNumber(directory + "/ready.0");
  const absl::Time sent = SteadyNow();
  for (const int signal : signals) {
    kill(launcher, signal);
    if (signals.size() > 1) absl::SleepFor(absl::Milliseconds(300));
  }
  int status = 0;
  waitpid(launcher, &status, 0);
  const absl::Duration after = SteadyNow() - sent;
  std::string description;
  std::getline(std::ifstream(directory + "/description"), description);
  return {.exit_code = WEXITSTATUS(status), .description = description, .after = after};
}

constexpr char kReady[] = "mv $DIR/tmp.$RANK $DIR/ready.$RANK; while true; do sleep 0.01; done";
// The same, but without starting a program, because a shell blocks all signals while it starts one.
constexpr char kIdle[] = "mv $DIR/tmp.$RANK $DIR/ready.$RANK; exec sleep 1000";
constexpr absl::Duration kPromised = absl::Seconds(2);
constexpr int kLoaded = 2;  // other tests may have all cores

TEST(LauncherTest, ASignalThatRanksDoNotCatchEndsThemAndIsTheExitStatus) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const End end = EndAfter(kReady, {signal}, absl::Minutes(1));
    EXPECT_EQ(end.exit_code, 128 + signal);
    EXPECT_LT(end.after, kLoaded * kPromised);
  }
}

TEST(LauncherTest, RanksThatIgnoreASignalOrAreStoppedEndAfterASecond) {
  const End ignoring = EndAfter(absl::StrCat("trap '' TERM; ", kIdle), {SIGTERM}, absl::Minutes(1));
  EXPECT_EQ(ignoring.exit_code, 128 + SIGTERM);
  EXPECT_LT(ignoring.after, kLoaded * kPromised);
  const End stopped = EndAfter(kIdle, {SIGTERM}, absl::Minutes(1), [](int rank) { kill(rank, SIGSTOP); });
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM);
  EXPECT_LT(stopped.after, kLoaded * kPromised);
}

TEST(LauncherTest, ARankThatCatchesTheSignalHasTheGrace) {
  const End end = EndAfter(absl::StrCat("trap : TERM; ", kReady), {SIGTERM}, absl::Milliseconds(1500));
  EXPECT_EQ(end.exit_code, 128 + SIGTERM);
  EXPECT_GE(end.after, absl::Milliseconds(1500));
}

TEST(LauncherTest, ASecondSignalKillsRanksThatCatchTheFirst) {
  const End end = EndAfter(absl::StrCat("trap : TERM; ", kReady), {SIGTERM, SIGTERM}, absl::Minutes(1));
  EXPECT_EQ(end.exit_code, 128 + SIGTERM);
  EXPECT_LT(end.after, kLoaded * kPromised);
}

// Starts two ranks by a launcher in its own process. Each rank runs `begin`, and then writes without end to a pipe that
// is never read. When the pipe is full, the launcher gets SIGTERM. Returns the launcher's exit status.
int EndWithoutReader(const std::string& begin) {
  // Each rank makes a file after `begin`: the first rank could fill the pipe without the other.
  std::string ready = testing::TempDir() + "ranks_XXXXXX";
  EXPECT_NE(mkdtemp(ready.data()), nullptr);
  const std::string script = absl::StrCat(begin, ": > ", ready, "/$RANK; while true; do echo line; done");
  int output[2];
  EXPECT_EQ(pipe(output), 0);
  const int launcher = fork();
  if (launcher == 0) {
    dup2(output[1], STDOUT_FILENO);
    const absl::StatusOr<LaunchResult> result = Launch(Shell(2, script));
    _exit(result.ok() ? result->exit_code : 99);
  }
  // A pipe is full when none of its pages is free; the number of bytes in it depends on the sizes of the writes.
  pollfd full = {.fd = output[1], .events = POLLOUT, .revents = 0};
  const auto is_ready = [&ready](int rank) { return access(absl::StrCat(ready, "/", rank).c_str(), F_OK) == 0; };
  while (!is_ready(0) || !is_ready(1) || poll(&full, 1, 0) != 0) absl::SleepFor(absl::Milliseconds(10));
  const absl::Time sent = SteadyNow();
  kill(launcher, SIGTERM);
  int status = 0;
  waitpid(launcher, &status, 0);
  EXPECT_LT(SteadyNow() - sent, kLoaded * kPromised);
  close(output[0]);
  close(output[1]);
  return WEXITSTATUS(status);
}

TEST(LauncherTest, AReaderThatDoesNotReadTheOutputKeepsNobodyFromEnding) {
  EXPECT_EQ(EndWithoutReader(""), 128 + SIGTERM);
  EXPECT_EQ(EndWithoutReader("trap 'exit 0' TERM; "), 0) << "it has the grace, 30 s";
}

TEST(LauncherTest, ARankThatFailsInWhatItFinishesIsNamedByItsOwnStatus) {
  EXPECT_EQ(EndAfter(absl::StrCat("trap 'exit 0' TERM; ", kReady), {SIGTERM}, absl::Minutes(1)).exit_code, 0);
  EXPECT_EQ(EndAfter(absl::StrCat("trap 'exit 1' TERM; ", kReady), {SIGTERM}, absl::Minutes(1)).exit_code, 1);
  EXPECT_EQ(EndAfter(absl::StrCat("trap 'exit 75' TERM; ", kReady), {SIGTERM}, absl::Minutes(1)).exit_code,
            128 + SIGTERM)
      << "it lost a peer that the signal had ended";
}

TEST(LauncherTest, ACrashAfterTheSignalIsNotTakenForItsEnd) {
  const End end = EndAfter(absl::StrCat("trap 'if test $RANK = 1; then kill -SEGV $$; fi' TERM; ", kReady), {SIGTERM},
                           absl::Minutes(1));
  EXPECT_EQ(end.exit_code, 128 + SIGSEGV);
  EXPECT_EQ(end.description, "rank 1 of 2 was killed by signal 11 (Segmentation fault)");
}

// Rank 1 reports that it is ready after the failure of rank 0 has brought it SIGTERM.
TEST(LauncherTest, ACrashBeforeTheSignalIsNotTakenForItsEnd) {
  const End end = EndAfter(
      "if test $RANK = 1; then trap 'mv $DIR/tmp.1 $DIR/ready.1' TERM; echo 1 > $DIR/go; fi;"
      "while test $RANK = 1 || ! test -e $DIR/go; do sleep 0.01; done; mv $DIR/tmp.0 $DIR/ready.0; kill -KILL $$",
      {SIGTERM}, absl::Milliseconds(300));
  EXPECT_EQ(end.exit_code, 128 + SIGKILL);
  EXPECT_EQ(end.description, "rank 0 of 2 was killed by signal 9 (Killed)");
}

TEST(LauncherTest, RanksDieWithALauncherThatIsKilled) {
  const std::string directory = NewDirectory();
  const ScopedVariable for_scripts("DIR", directory);
  const int launcher = ForkLauncher(Shell(2, "echo $$ > $DIR/pid.$RANK; while true; do read x < /dev/zero; done"));
  std::vector<ProcessHandle> ranks;
  for (const char* name : {"/pid.0", "/pid.1"}) {
    ASSERT_OK_AND_ASSIGN(ProcessHandle rank, ProcessHandle::Open(AwaitNumber(directory + name)));
    ranks.push_back(std::move(rank));
  }
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  for (const ProcessHandle& rank : ranks) {
    AwaitEnd(rank);
  }
}

TEST(LauncherTest, WhatARankStartedEndsWithIt) {
  const std::string directory = NewDirectory();
  const ScopedVariable for_scripts("DIR", directory);
  const int launcher =
      ForkLauncher(Shell(1, "sleep 1000 & echo $! > $DIR/pid; while ! test -e $DIR/go; do sleep 0.01; done"));
  ASSERT_OK_AND_ASSIGN(const ProcessHandle grandchild, ProcessHandle::Open(AwaitNumber(directory + "/pid")));
  std::ofstream(directory + "/go") << "1";
  waitpid(launcher, nullptr, 0);
  AwaitEnd(grandchild);
}

TEST(LauncherTest, SelfPathIsThisProgram) {
  EXPECT_TRUE(std::filesystem::equivalent(SelfPath(), "/proc/self/exe"));
  EXPECT_THAT(SelfPath(), HasSubstr("_test"));
}

TEST(LauncherTest, InsideJobFollowsTheEnvironment) {
  ScopedVariable rank("RANK", std::nullopt);
  ScopedVariable world_size("WORLD_SIZE", std::nullopt);
  EXPECT_FALSE(InsideJob());
  rank.Set("0");
  world_size.Set("1");
  EXPECT_TRUE(InsideJob());
  rank.Set(std::nullopt);
  EXPECT_TRUE(InsideJob()) << "a broken environment is not a licence to start another job";
}

}  // namespace
}  // namespace fsdp
