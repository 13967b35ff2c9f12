// SPDX-License-Identifier: Apache-2.0
//
// How runs of train_gpt end on request, and that two jobs never mix: ranks are processes, started by --nproc or one by
// one with torchrun's variables. docs/collectives.md promises 2 s from a signal to the end of all processes; the tests
// allow kLoaded times as much, since other tests may use all cores.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/base/process_handle.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/object/curl_library.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kPromise = absl::Seconds(2);
constexpr int kLoaded = 2;

// A socket that listens on a free port of 127.0.0.1 and never answers.
class SilentServer {
 public:
  SilentServer() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(address);
    bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size);
    listen(socket_.get(), 8);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }

  int port() const { return port_; }

  // True once a client waits for an answer; false after 30 s.
  bool HasClient() const {
    pollfd ready = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    return poll(&ready, 1, 30'000) == 1;
  }

 private:
  FileDescriptor socket_;
  int port_ = 0;
};

int FreePort() { return SilentServer().port(); }

class StopTest : public testing::Test {
 protected:
  ~StopTest() override { EXPECT_THAT(Survivors(directory_), IsEmpty()); }

  // A rank of a job of two that no launcher started.
  std::unique_ptr<ChildProcess> StartRank(int rank, int port, const Flags& flags,
                                          const std::string& address = "127.0.0.1") {
    ChildOptions options;
    options.environment = {{"RANK", absl::StrCat(rank)}, {"LOCAL_RANK", absl::StrCat(rank)},
                           {"WORLD_SIZE", "2"},          {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", address},     {"MASTER_PORT", absl::StrCat(port)}};
    options.unset = {"FSDP_RUN_ID", "FSDP_LAUNCH_ID", "TORCHELASTIC_RUN_ID", "BUILD_WORKING_DIRECTORY"};
    auto started = ChildProcess::Start(Flags{*FindRunfile("train/train_gpt")} + SmallRun() + flags, options);
    EXPECT_OK(started);
    return started.ok() ? *std::move(started) : nullptr;
  }

  // Both ranks of such a job, once they train.
  std::vector<std::unique_ptr<ChildProcess>> StartTrainingRanks(const Flags& flags = {}) {
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (const int rank : {0, 1}) ranks.push_back(StartRank(rank, port_, Long() + flags));
    EXPECT_OK(WaitForStep(metrics_, 2));
    return ranks;
  }

  Flags Long() const { return {"--steps=1000000", "--metrics=" + metrics_, "--checkpoint_dir=" + checkpoint_dir_}; }

  // True once the program is in main and handles signals.
  static void AwaitMain(const ChildProcess& child) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!child.Catches(SIGUSR1) && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  }

  // Expects that the signal ends the process with `status` within the promise.
  static void ExpectEnds(ChildProcess& child, int signal, int status) {
    const absl::Time sent = absl::Now();
    child.Signal(signal);
    EXPECT_THAT(child.Wait(absl::Seconds(15)), IsOkAndHolds(status)) << child.output();
    EXPECT_LT(absl::Now() - sent, kLoaded * kPromise) << child.output();
  }

  const int port_ = FreePort();  // of StartTrainingRanks
  const std::string directory_ = NewDirectory();
  const std::string metrics_ = directory_ + "/metrics.jsonl";
  const std::string checkpoint_dir_ = directory_ + "/checkpoints";
};

TEST_F(StopTest, ARankEndsWhereverItWaitsForTheOthers) {
  SilentServer silent;
  const struct {
    int rank;
    int port;
    const char* address;
    int signal;
  } waits[] = {
      {1, FreePort(), "127.0.0.1", SIGTERM},            // rank 0 does not come
      {0, FreePort(), "127.0.0.1", SIGINT},             // rank 1 does not come
      {1, FreePort(), "no-such-host.invalid", SIGINT},  // nor does the name of its host
      {1, silent.port(), "127.0.0.1", SIGTERM},         // another program, not a store, has the port
      {0, silent.port(), "127.0.0.1", SIGTERM},
  };
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (const auto& wait : waits) ranks.push_back(StartRank(wait.rank, wait.port, Long(), wait.address));
  for (size_t i = 0; i < ranks.size(); ++i) {
    SCOPED_TRACE(i);
    AwaitMain(*ranks[i]);
    ExpectEnds(*ranks[i], waits[i].signal, 128 + waits[i].signal);
  }
}

TEST_F(StopTest, AFifoIsRefusedWhereAFileIsExpected) {
  const std::string fifo = directory_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0666), 0);
  const Flags config = {"--config=" + Golden("gpt2_tiny/config.json")};
  const Flags tokens = {"--tokens=" + Golden("tokens.u16")};
  const Flags wrong[] = {tokens + Flags{"--config=" + fifo}, config + Flags{"--tokens=" + fifo},
                         config + tokens + Flags{"--init_from=" + fifo}};
  std::vector<std::unique_ptr<ChildProcess>> runs;
  for (const Flags& flags : wrong) {
    ASSERT_OK_AND_ASSIGN(auto run, StartTraining(flags + Flags{"--nproc=1", "--steps=1"}));
    runs.push_back(std::move(run));
  }
  for (const auto& run : runs) {
    EXPECT_THAT(run->Wait(absl::Seconds(20)), IsOkAndHolds(1)) << run->output();
    EXPECT_THAT(run->output(), AllOf(HasSubstr(fifo), HasSubstr("file")));
  }
}

// Rank 0 waits for an object store, rank 1 for rank 0; one of them is also stopped.
TEST_F(StopTest, ALauncherEndsWhoseRanksWaitForWhatNeverComes) {
  const struct {
    int stopped;
    int signal;
  } cases[] = {{-1, SIGTERM}, {0, SIGTERM}, {1, SIGINT}};
  if (const auto curl = CurlLibrary::Load(); !curl.ok()) GTEST_SKIP() << curl.status().message();
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"}) setenv(name, "any", 1);
  SilentServer stores[std::size(cases)];
  std::vector<std::unique_ptr<ChildProcess>> runs;
  for (size_t i = 0; i < std::size(cases); ++i) {
    setenv("AWS_ENDPOINT_URL_S3", absl::StrCat("http://127.0.0.1:", stores[i].port()).c_str(), 1);
    ASSERT_OK_AND_ASSIGN(auto run, StartTraining(SmallRun() + Flags{"--steps=2", "--upload=s3://bucket/run",
                                                                    absl::StrCat("--checkpoint_dir=", directory_,
                                                                                 "/saved", cases[i].stopped, ".")}));
    runs.push_back(std::move(run));
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& c = cases[i];
    SCOPED_TRACE(c.stopped);
    ASSERT_TRUE(stores[i].HasClient());
    const std::map<int, pid_t> ranks = RanksOf(absl::StrCat(directory_, "/saved", c.stopped, "."));
    ASSERT_THAT(ranks, SizeIs(2));
    if (c.stopped >= 0) kill(ranks.at(c.stopped), SIGSTOP);
    ExpectEnds(*runs[i], c.signal, 128 + c.signal);
  }
}

TEST_F(StopTest, ARankThatWasStoppedFinishesItsStepAndSavesAsTheOthers) {
  ASSERT_OK_AND_ASSIGN(const auto run, StartTraining(SmallRun() + Long()));
  ASSERT_OK(WaitForStep(metrics_, 2));
  kill(RanksOf(metrics_).at(1), SIGSTOP);
  run->Signal(SIGTERM);
  EXPECT_THAT(run->Wait(absl::Seconds(15)), IsOkAndHolds(0)) << run->output();
  EXPECT_OK(LatestCheckpoint(checkpoint_dir_)) << run->output();
}

TEST_F(StopTest, SigintEndsTrainingAtOnceAndLeavesNoHalfCheckpoint) {
  // When the signal comes, each run is in a save or not; a run that saves after each step mostly is.
  for (const int64_t step : {2, 40, 80, 120}) {
    ASSERT_OK_AND_ASSIGN(const auto run, StartTraining(SmallRun() + Long() + Flags{"--checkpoint_every=1"}));
    ASSERT_OK(WaitForStep(metrics_, step));
    ExpectEnds(*run, SIGINT, 128 + SIGINT);
    EXPECT_THAT(run->output(), HasSubstr("stopped by signal 2"));
    std::vector<std::string> skipped;
    EXPECT_OK(LatestCheckpoint(checkpoint_dir_, &skipped));
    EXPECT_THAT(skipped, IsEmpty());
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint_dir_)) {
      EXPECT_NE(entry.path().filename().string()[0], '.') << entry.path() << " was left by the save";
    }
  }
}

// The other rank is stopped in the step, so that it never ends.
TEST_F(StopTest, AStepThatDoesNotEndIsGivenUpAfterTheGrace) {
  const auto ranks = StartTrainingRanks({"--grace=1s"});
  ranks[1]->Signal(SIGSTOP);
  const absl::Time sent = absl::Now();
  ranks[0]->Signal(SIGTERM);
  EXPECT_THAT(ranks[0]->Wait(absl::Seconds(15)), IsOkAndHolds(128 + SIGTERM)) << ranks[0]->output();
  EXPECT_GE(absl::Now() - sent, absl::Milliseconds(900));
  EXPECT_LT(absl::Now() - sent, absl::Seconds(1) + kLoaded * kPromise);
}

TEST_F(StopTest, ASecondSignalEndsARankAtOnce) {
  const auto ranks = StartTrainingRanks();
  ranks[1]->Signal(SIGSTOP);
  ranks[0]->Signal(SIGTERM);
  // A second signal is one that comes a second after the rank took the first.
  ASSERT_EQ(ranks[0]->Poll(absl::Seconds(2)), std::nullopt) << "the step has its grace";
  ExpectEnds(*ranks[0], SIGTERM, 128 + SIGTERM);
}

TEST_F(StopTest, ARankWhosePeerIsGoneExitsWith75) {
  const auto ranks = StartTrainingRanks();
  const absl::Time killed = absl::Now();
  ranks[1]->Signal(SIGKILL);
  EXPECT_THAT(ranks[0]->Wait(absl::Seconds(15)), IsOkAndHolds(75));
  EXPECT_LT(absl::Now() - killed, kLoaded * kPromise);
  EXPECT_THAT(ranks[0]->output(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr("died")));
}

// The commands of two jobs that differ in one flag, started at the same moment with one port.
TEST_F(StopTest, TwoJobsOnOnePortNeverTrainTogether) {
  std::map<std::string, std::vector<std::unique_ptr<ChildProcess>>> jobs;
  for (const std::string job : {"a", "b"}) {
    for (const int rank : {0, 1}) {
      jobs[job].push_back(StartRank(rank, port_, {"--steps=300", "--checkpoint_dir=" + directory_ + "/" + job}));
    }
  }
  std::vector<std::string> trained;
  for (const auto& [job, ranks] : jobs) {
    const int status = ranks[0]->Wait(absl::Seconds(30)).value_or(-1);
    EXPECT_THAT(ranks[1]->Wait(absl::Seconds(30)), IsOkAndHolds(status)) << "both ranks have the same fate";
    if (status == 0) trained.push_back(job);
    if (status == 0) continue;
    EXPECT_EQ(status, 75) << ranks[0]->output();
    for (const auto& rank : ranks) {
      EXPECT_THAT(rank->output(),
                  AllOf(HasSubstr("is held by another job"), HasSubstr("(rank 0 of 2, pid "), HasSubstr("--run_id")));
    }
  }
  ASSERT_THAT(trained, SizeIs(1));
  EXPECT_OK(LatestCheckpoint(directory_ + "/" + trained[0]));
}

TEST_F(StopTest, AJobThatComesLaterIsToldWhoHoldsThePort) {
  const auto first = StartTrainingRanks({"--run_id=first"});
  const pid_t holder = first[0]->pid();
  for (const int rank : {0, 1}) {
    const auto second = StartRank(rank, port_, {"--steps=1", "--run_id=second", "--metrics=" + directory_ + "/other"});
    EXPECT_THAT(second->Wait(absl::Seconds(15)), IsOkAndHolds(75)) << second->output();
    EXPECT_THAT(second->output(), HasSubstr(absl::StrCat("is held by another job: this is job \"run first\" "
                                                         "(rank 0 of 2, pid ",
                                                         holder)));
  }
  first[0]->Signal(SIGTERM);
  EXPECT_THAT(first[0]->Wait(absl::Seconds(15)), IsOkAndHolds(0)) << "it was not disturbed: " << first[0]->output();
  EXPECT_THAT(first[1]->Wait(absl::Seconds(15)), IsOkAndHolds(0));
}

}  // namespace
}  // namespace fsdp
