// SPDX-License-Identifier: Apache-2.0
//
// Ranks are forked, not executed: a test passes a lambda as rank_main. A result comes back through a pipe per rank, as
// one write, so that a rank that is killed has reported either completely or not at all.
//
// Stopped ranks (SIGSTOP) would never end. WUNTRACED reports them; after each rank has ended or stopped, the stopped
// ones are killed.
#include "fsdp/collectives/conformance/process_ranks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/init_process_group.h"

namespace fsdp {
namespace {

// The message that a rank writes into its pipe. A single write of less than PIPE_BUF bytes is atomic: the pipe has all
// of it or nothing.
struct Report {
  int64_t at_ns = 0;
  int32_t code = 0;
  char message[2000] = {};
};

[[noreturn]] void BeRank(int rank, int pipe_fd, const std::function<absl::Status(int rank)>& rank_main) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const absl::Status status = rank_main(rank);
  Report report = {.at_ns = absl::ToUnixNanos(absl::Now()), .code = static_cast<int32_t>(status.code())};
  std::strncpy(report.message, std::string(status.message()).c_str(), sizeof(report.message) - 1);
  Check(write(pipe_fd, &report, sizeof(report)) == sizeof(report), "a report is written");
  _exit(status.ok() ? 0 : 1);
}

// The write end of the pipe is closed already.
RankResult ReadResult(int pipe_fd, int wait_status) {
  RankResult result = {.wait_status = wait_status};
  Report report;
  result.reported = read(pipe_fd, &report, sizeof(report)) == sizeof(report);
  if (result.reported) {
    result.status = absl::Status(static_cast<absl::StatusCode>(report.code), report.message);
    result.at = absl::FromUnixNanos(report.at_ns);
  }
  return result;
}

// The wait status of each process, by pid. Waits only for these: other tests of this program have children too.
std::map<int, int> AwaitAll(const std::vector<int>& processes) {
  std::map<int, int> ended;
  std::vector<int> stopped;
  for (const int pid : processes) {
    int status = 0;
    waitpid(pid, &status, WUNTRACED);
    if (WIFSTOPPED(status)) {
      stopped.push_back(pid);
    } else {
      ended[pid] = status;
    }
  }
  for (const int pid : stopped) {
    kill(pid, SIGKILL);
    waitpid(pid, &ended[pid], 0);
  }
  return ended;
}

}  // namespace

// A random number, because tests that Bazel runs at the same time may have equal process numbers: each sandbox has its
// own.
Rendezvous NewJob(int world_size) {
  static int jobs = 0;
  static const unsigned tests = std::random_device()();
  return {.world_size = world_size,
          .local_world_size = world_size,
          .master_addr = "localhost",
          .source = "test",
          .job = absl::StrCat("test ", tests, " of process ", getpid(), ", job ", ++jobs)};
}

// The parent closes each write end immediately, so that a read of a killed rank's pipe ends instead of waiting.
std::vector<RankResult> RunProcesses(int world_size, const std::function<absl::Status(int rank)>& rank_main) {
  std::vector<std::pair<int, int>> ranks;  // process, pipe
  for (int r = 0; r < world_size; ++r) {
    int fds[2];
    Check(pipe(fds) == 0, "a pipe");
    const int pid = fork();
    Check(pid >= 0, "a process");
    if (pid == 0) {
      BeRank(r, fds[1], rank_main);
    }
    close(fds[1]);
    ranks.emplace_back(pid, fds[0]);
  }
  std::vector<int> processes;
  for (const auto& [pid, pipe_fd] : ranks) processes.push_back(pid);
  const std::map<int, int> ended = AwaitAll(processes);
  std::vector<RankResult> results;
  for (const auto& [pid, pipe_fd] : ranks) {
    results.push_back(ReadResult(pipe_fd, ended.at(pid)));
    close(pipe_fd);
  }
  return results;
}

std::vector<RankResult> RunProcessRanks(
    int world_size, absl::Duration timeout,
    const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main) {
  const Rendezvous job = NewJob(world_size);
  return RunProcesses(world_size, [&](int rank) -> absl::Status {
    Rendezvous rendezvous = job;
    rendezvous.rank = rank;
    rendezvous.local_rank = rank;
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group, InitProcessGroup(rendezvous, {.timeout = timeout}));
    return rank_main(std::move(group));
  });
}

}  // namespace fsdp
