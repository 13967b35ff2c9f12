// SPDX-License-Identifier: Apache-2.0
//
// A single thread runs a poll loop over the signals, the ends of the ranks and their output:
//
//   running --(a rank fails, or the timeout)--> stopping: SIGTERM to all --(grace)--> SIGKILL to all
//      |                                           |                                     |
//      +--(all ranks have ended)-------------------+-------------------------------------+--> result
//
// The first failure is the result; failures of other ranks after it are its consequences. The listening socket of the
// job's store is opened here and inherited by rank 0, so that the port is taken before any rank starts: no rank can
// find a port that another program has taken since, and no rank has to wait for rank 0 to listen.
#include "fsdp/collectives/launcher.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/job/forwarded_signals.h"
#include "fsdp/collectives/job/rank_output.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/collectives/job/socket.h"

namespace fsdp {
namespace {

constexpr int kTimedOut = 124;  // as timeout(1)

// A rank's process and where its output goes. Does not move: the process holds pointers to the outputs.
struct Rank {
  explicit Rank(const std::string& prefix)
      : output(STDOUT_FILENO, prefix, &last_lines), errors(STDERR_FILENO, prefix, &last_lines) {}

  bool has_ended() const { return process->exit_status().has_value(); }

  LastLines last_lines;
  RankOutput output;
  RankOutput errors;
  std::unique_ptr<ChildProcess> process;
};

class Job {
 public:
  explicit Job(const LaunchOptions& options) : options_(options), deadline_(absl::Now() + options.timeout) {}

  absl::Status Start();
  LaunchResult Run(ForwardedSignals& signals);

 private:
  absl::StatusOr<std::unique_ptr<Rank>> StartRank(int rank, int port, int store_fd) const;
  std::vector<pollfd> Poll(const ForwardedSignals& signals) const;
  void PassOutput();
  void ReapEnded();
  void NoteFailure(int rank);
  void StopWhenTimeIsUp();
  void Stop();
  void SignalAll(int signal);
  std::vector<int> Running() const;

  const LaunchOptions& options_;
  const absl::Time deadline_;
  // Their destructors end the ranks of a job that could not start completely.
  std::vector<std::unique_ptr<Rank>> ranks_;
  LaunchResult result_;
  absl::Time kill_at_ = absl::InfiniteFuture();  // set by Stop
};

absl::Status Job::Start() {
  FSDP_ASSIGN_OR_RETURN(const FileDescriptor listener, ListenTcp("127.0.0.1", 0));
  FSDP_ASSIGN_OR_RETURN(const int port, ListeningPort(listener.get()));
  for (int r = 0; r < options_.nproc; ++r) {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Rank> rank, StartRank(r, port, r == 0 ? listener.get() : -1));
    ranks_.push_back(std::move(rank));
  }
  return absl::OkStatus();
}

// The rank's environment is this process's, without what an outer job may have left in it, and with torchrun's
// variables.
absl::StatusOr<std::unique_ptr<Rank>> Job::StartRank(int rank, int port, int store_fd) const {
  ChildOptions child;
  child.environment = {{"RANK", absl::StrCat(rank)},       {"WORLD_SIZE", absl::StrCat(options_.nproc)},
                       {"LOCAL_RANK", absl::StrCat(rank)}, {"LOCAL_WORLD_SIZE", absl::StrCat(options_.nproc)},
                       {"MASTER_ADDR", "127.0.0.1"},       {"MASTER_PORT", absl::StrCat(port)}};
  child.unset = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                 kStoreDescriptorVariable};
  if (store_fd >= 0) {
    child.environment[kStoreDescriptorVariable] = absl::StrCat(store_fd);
  }
  child.inherited_fd = store_fd;
  auto started = std::make_unique<Rank>(absl::StrCat("[rank ", rank, "] "));
  Rank* const lines = started.get();
  const bool is_prefixed = options_.prefix_output;
  child.output = is_prefixed ? ChildOutput::Lines([lines](absl::string_view line) { lines->output.Add(line); })
                             : ChildOutput::Inherit();
  child.errors = is_prefixed ? ChildOutput::Lines([lines](absl::string_view line) { lines->errors.Add(line); })
                             : ChildOutput::Inherit();
  FSDP_ASSIGN_OR_RETURN(started->process, ChildProcess::Start(options_.command, child));
  return started;
}

LaunchResult Job::Run(ForwardedSignals& signals) {
  while (!Running().empty()) {
    const std::vector<pollfd> polled = Poll(signals);
    if (polled[0].revents != 0) {
      for (const int signal : signals.Take()) {
        SignalAll(signal);
      }
    }
    PassOutput();
    ReapEnded();
    StopWhenTimeIsUp();
  }
  PassOutput();  // one pass, not to the end of the stream: a process that left its rank's group may keep the pipe open
  if (result_.failed_rank >= 0) {
    const std::deque<std::string>& lines = ranks_[result_.failed_rank]->last_lines.lines();
    result_.last_lines.assign(lines.begin(), lines.end());
  }
  return result_;
}

std::vector<pollfd> Job::Poll(const ForwardedSignals& signals) const {
  std::vector<pollfd> polled = {{.fd = signals.fd(), .events = POLLIN, .revents = 0}};
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->process->AppendPollFds(polled);
  }
  if (poll(polled.data(), polled.size(), PollTimeout(std::min(deadline_, kill_at_))) <= 0) {
    polled[0].revents = 0;
  }
  return polled;
}

void Job::PassOutput() {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->process->ReadOutput();
    rank->output.Flush();
    rank->errors.Flush();
  }
}

// If several ranks have ended since the last look, one that was killed is the likelier cause: the others notice its
// death and fail within milliseconds.
void Job::ReapEnded() {
  int failed = -1;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = *ranks_[r];
    if (rank.has_ended() || !rank.process->Reap().has_value()) {
      continue;
    }
    const ExitStatus& ended = *rank.process->exit_status();
    if (!ended.ok() && (failed < 0 || (ended.signal != 0 && ranks_[failed]->process->exit_status()->signal == 0))) {
      failed = static_cast<int>(r);
    }
  }
  if (failed >= 0) {
    NoteFailure(failed);
  }
}

void Job::NoteFailure(int rank) {
  if (result_.exit_code != 0) {
    return;
  }
  const ExitStatus& ended = *ranks_[rank]->process->exit_status();
  result_.exit_code = ended.shell_code();
  result_.failed_rank = rank;
  result_.description = absl::StrCat("rank ", rank, " of ", options_.nproc, " ", ended.ToString());
  Stop();
}

void Job::StopWhenTimeIsUp() {
  const absl::Time now = absl::Now();
  if (now >= kill_at_) {
    SignalAll(SIGKILL);
  } else if (now >= deadline_ && result_.exit_code == 0 && !Running().empty()) {
    result_.exit_code = kTimedOut;
    result_.description = absl::StrCat("the job took longer than ", absl::FormatDuration(options_.timeout),
                                       "; ranks that still ran: ", absl::StrJoin(Running(), ", "));
    Stop();
  }
}

void Job::Stop() {
  SignalAll(SIGTERM);
  kill_at_ = absl::Now() + options_.grace;
}

void Job::SignalAll(int signal) {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->process->SignalGroup(signal);
  }
}

std::vector<int> Job::Running() const {
  std::vector<int> running;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r]->has_ended()) {
      running.push_back(static_cast<int>(r));
    }
  }
  return running;
}

}  // namespace

absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options) {
  if (options.nproc < 1) {
    return absl::InvalidArgumentError(absl::StrCat("nproc is ", options.nproc, ", wanted at least 1"));
  }
  if (options.command.empty()) {
    return absl::InvalidArgumentError("there is no program to launch");
  }
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ForwardedSignals> signals, ForwardedSignals::Block());
  Job job(options);
  FSDP_RETURN_IF_ERROR(job.Start());
  return job.Run(*signals);
}

std::string SelfPath() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  return std::string(path, static_cast<size_t>(std::max<ssize_t>(n, 0)));
}

bool InsideJob() {
  const absl::StatusOr<Rendezvous> rendezvous = RendezvousFromEnvironment();
  return !rendezvous.ok() || rendezvous->source != "single process";
}

}  // namespace fsdp
