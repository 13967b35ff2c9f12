// SPDX-License-Identifier: Apache-2.0
//
// A single thread runs a poll loop over the signals, the ends of the ranks and their output:
//
//   running --(a rank fails, and a second more; or the timeout)--> stopping: SIGTERM to all --(grace)--> SIGKILL
//      |                                            |
//      +----(SIGTERM, SIGINT)---> asked: the signal to all --(stop_grace, or a second signal)--> SIGKILL
//      |                                            |                                          |
//      +----(all ranks have ended)------------------+------------------------------------------+--> result
//
// The first failure is the result; later failures of other ranks are its consequences. Ranks notice a missing peer by
// themselves within the second that they are given, and one of them prints why it ends. A rank that catches or blocks
// the signal has work to finish and is given stop_grace. Any other rank is ended by the signal itself, unless it is
// stuck in the kernel, and the launcher does not wait for it. So the launcher needs no message from its ranks about
// their work, and the rule holds for every program.
//
// The listening socket of the job's store is opened here and inherited by rank 0, so that the port is taken before any
// rank starts: another program cannot take it in between, and no rank has to wait for rank 0 to listen. For a job on
// several hosts, host 0's launcher does so. There is no launch id then: the launchers do not communicate, so the ranks'
// job has the name that --run_id, a scheduler or its command line gives it.
#include "fsdp/collectives/launcher.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/exit_code.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/forwarded_signals.h"
#include "fsdp/collectives/job/job_identity.h"
#include "fsdp/collectives/job/job_store.h"
#include "fsdp/collectives/job/rank_output.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/self_launch.h"

namespace fsdp {
namespace {

constexpr int kTimedOut = 124;  // as timeout(1)

// How long a rank that does not catch a signal may take to end.
constexpr absl::Duration kUncaughtGrace = absl::Seconds(1);

// How long the remaining ranks may take to notice a failure and print it, before they get SIGTERM.
constexpr absl::Duration kToNotice = absl::Seconds(1);

// Senders such as timeout(1) signal a process and then its whole group.
constexpr absl::Duration kSameRequest = absl::Milliseconds(200);

// After a stop request, at most this much of each stream is kept for a reader that does not read, and for this long at
// the end.
constexpr size_t kMostHeldBytes = size_t{1} << 20;
constexpr absl::Duration kLastOutput = absl::Milliseconds(500);

// A rank's process and the destinations of its output. Not movable: the process holds pointers to the outputs.
struct Rank {
  explicit Rank(const std::string& prefix)
      : output(STDOUT_FILENO, prefix, &last_lines), errors(STDERR_FILENO, prefix, &last_lines) {}

  bool has_ended() const { return process->exit_status().has_value(); }

  LastLines last_lines;
  RankOutput output;
  RankOutput errors;
  std::unique_ptr<ChildProcess> process;
  absl::Time kill_at = absl::InfiniteFuture();
};

class Job {
 public:
  explicit Job(const LaunchOptions& options) : options_(options), deadline_(SteadyNow() + options.timeout) {}

  absl::Status Start();
  LaunchResult Run(ForwardedSignals& signals);

 private:
  absl::StatusOr<std::unique_ptr<Rank>> StartRank(int local_rank, int port, int store_fd) const;
  std::string MasterAddress() const { return options_.master_addr.empty() ? "127.0.0.1" : options_.master_addr; }
  int FirstRank() const { return options_.node_rank * options_.nproc; }
  int WorldSize() const { return options_.nnodes * options_.nproc; }
  std::vector<pollfd> Poll(const ForwardedSignals& signals) const;
  void Forward(int signal);
  // Waits for a slow reader until `deadline`, or until a signal arrives.
  void PassOutput(const ForwardedSignals& signals, absl::Time deadline);
  // The time at which the loop must act without an event.
  absl::Time NextDeadline() const;
  void ReapEnded();
  void RecordFailure(int local_rank);
  void RecordSignal();
  void StopWhenTimeIsUp();
  void KillWhoseTimeIsUp();
  void Stop();
  void SignalAll(int signal);
  std::vector<int> Running() const;
  bool is_asked() const { return result_.stop_signal != 0; }

  const LaunchOptions& options_;
  const absl::Time deadline_;
  std::string launch_id_;  // set by Start; empty for several hosts
  // By local rank. If a job could not start completely, their destructors end the ranks that did.
  std::vector<std::unique_ptr<Rank>> ranks_;
  LaunchResult result_;
  absl::Time asked_at_ = absl::InfinitePast();   // when SIGTERM or SIGINT was first forwarded
  absl::Time stop_at_ = absl::InfiniteFuture();  // for the ranks that remain after a failure
  bool failed_after_signal_ = false;             // the first failure came after the signal
};

absl::Status Job::Start() {
  FileDescriptor listener;
  int port = options_.master_port;
  if (options_.node_rank == 0) {
    absl::StatusOr<FileDescriptor> opened =
        options_.nnodes > 1 ? ListenTcpForHosts(MasterAddress(), port) : ListenTcp(MasterAddress(), port);
    if (!opened.ok()) return NameHolder(opened.status(), MasterAddress(), port);
    listener = *std::move(opened);
    FSDP_ASSIGN_OR_RETURN(port, ListeningPort(listener.get()));
  }
  launch_id_ = options_.nnodes > 1 ? "" : NewLaunchId(port);
  for (int r = 0; r < options_.nproc; ++r) {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Rank> rank, StartRank(r, port, r == 0 ? listener.get() : -1));
    ranks_.push_back(std::move(rank));
  }
  return absl::OkStatus();
}

// The rank's environment is this process's, without the variables of an outer job, and with torchrun's variables.
absl::StatusOr<std::unique_ptr<Rank>> Job::StartRank(int local_rank, int port, int store_fd) const {
  const int rank = FirstRank() + local_rank;
  ChildOptions child;
  child.environment = {{"RANK", absl::StrCat(rank)},
                       {"WORLD_SIZE", absl::StrCat(WorldSize())},
                       {"LOCAL_RANK", absl::StrCat(local_rank)},
                       {"LOCAL_WORLD_SIZE", absl::StrCat(options_.nproc)},
                       {"MASTER_ADDR", MasterAddress()},
                       {"MASTER_PORT", absl::StrCat(port)}};
  child.unset = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                 kStoreDescriptorVariable};
  if (launch_id_.empty()) {
    child.unset.push_back(kLaunchIdVariable);
  } else {
    child.environment[kLaunchIdVariable] = launch_id_;
  }
  if (!options_.run_id.empty()) {
    child.environment[kRunIdVariable] = options_.run_id;
  }
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
        Forward(signal);
      }
    }
    PassOutput(signals, is_asked() ? absl::InfinitePast() : NextDeadline());
    ReapEnded();
    StopWhenTimeIsUp();
    KillWhoseTimeIsUp();
  }
  // One pass, not until the end of the stream: a process that left its rank's group may keep the pipe open.
  PassOutput(signals, is_asked() ? SteadyNow() + kLastOutput : absl::InfiniteFuture());
  RecordSignal();
  if (result_.failed_rank >= 0) {
    const std::deque<std::string>& lines = ranks_[result_.failed_rank - FirstRank()]->last_lines.lines();
    result_.last_lines.assign(lines.begin(), lines.end());
  }
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (result_.output_error == 0) result_.output_error = rank->output.error();
  }
  return result_;
}

std::vector<pollfd> Job::Poll(const ForwardedSignals& signals) const {
  std::vector<pollfd> polled = {{.fd = signals.fd(), .events = POLLIN, .revents = 0}};
  absl::Time deadline = NextDeadline();
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->process->AppendPollFds(polled);
    deadline = std::min(deadline, rank->process->PollDeadline());
    for (const RankOutput* output : {&rank->output, &rank->errors}) {
      if (output->is_pending()) {
        polled.push_back({.fd = output->destination(), .events = POLLOUT, .revents = 0});
      }
    }
  }
  if (poll(polled.data(), polled.size(), PollTimeout(deadline)) <= 0) {
    polled[0].revents = 0;
  }
  return polled;
}

absl::Time Job::NextDeadline() const {
  absl::Time next = result_.exit_code == 0 ? deadline_ : stop_at_;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    next = std::min(next, rank->kill_at);
  }
  return next;
}

void Job::Forward(int signal) {
  if (signal != SIGTERM && signal != SIGINT) {
    SignalAll(signal);
    return;
  }
  const absl::Time now = SteadyNow();
  const bool is_second = result_.stop_signal != 0 && now - asked_at_ > kSameRequest;
  if (result_.stop_signal == 0) {
    asked_at_ = now;
    for (const std::unique_ptr<Rank>& rank : ranks_) {
      const bool catches = rank->process->Catches(signal);
      rank->kill_at = std::min(rank->kill_at, now + (catches ? options_.stop_grace : kUncaughtGrace));
      rank->process->SignalGroup(signal);
      rank->process->SignalGroup(SIGCONT);
    }
  } else if (is_second) {
    SignalAll(SIGKILL);
  }
  if (result_.stop_signal == 0 || is_second) {
    result_.stop_signal = signal;
  }
}

// Before a stop, ranks that write faster than the reader reads are held up, as they would be without a launcher. After
// it, neither they nor this process wait for the reader: output that it does not take in time is lost.
void Job::PassOutput(const ForwardedSignals& signals, absl::Time deadline) {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->process->ReadOutput();
    for (RankOutput* output : {&rank->output, &rank->errors}) {
      output->Flush(signals.fd(), deadline);
      if (is_asked()) output->DropBeyond(kMostHeldBytes);
    }
  }
}

// If several ranks have ended since the last check, one that was killed is the likelier cause: the others notice its
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
    RecordFailure(failed);
  }
}

void Job::RecordFailure(int local_rank) {
  if (result_.exit_code != 0) {
    return;
  }
  const ExitStatus& ended = *ranks_[local_rank]->process->exit_status();
  result_.exit_code = ended.shell_code();
  result_.failed_rank = FirstRank() + local_rank;
  failed_after_signal_ = result_.stop_signal != 0;
  result_.description = absl::StrCat("rank ", result_.failed_rank, " of ", WorldSize(), " ", ended.ToString());
  stop_at_ = is_asked() ? SteadyNow() : SteadyNow() + kToNotice;
}

// Decides whether the failure was caused by the signal. A rank that was killed by it or by this process, or that lost
// such a peer, ended by the signal. A rank that crashed or failed in the work that it wanted to finish, such as a save,
// did not, and neither did one that had failed before.
void Job::RecordSignal() {
  const int code = result_.exit_code;
  const bool by_signal = code == kExitRestart || code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGKILL;
  if (!failed_after_signal_ || !by_signal) {
    return;
  }
  result_.exit_code = 128 + result_.stop_signal;
  result_.description =
      absl::StrCat("stopped by signal ", result_.stop_signal, " (", strsignal(result_.stop_signal), ")");
  result_.failed_rank = -1;
}

void Job::StopWhenTimeIsUp() {
  if (SteadyNow() >= stop_at_) Stop();
  if (SteadyNow() >= deadline_ && result_.exit_code == 0 && !Running().empty()) {
    result_.exit_code = kTimedOut;
    result_.description = absl::StrCat("the job took longer than ", absl::FormatDuration(options_.timeout),
                                       "; ranks that still ran: ", absl::StrJoin(Running(), ", "));
    Stop();
  }
}

void Job::KillWhoseTimeIsUp() {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (SteadyNow() >= rank->kill_at) {
      rank->process->SignalGroup(SIGKILL);
      rank->kill_at = absl::InfiniteFuture();
    }
  }
}

// After a stop request, this process does not wait for work that ranks without their peer may still finish.
void Job::Stop() {
  stop_at_ = absl::InfiniteFuture();
  const absl::Time kill_at = SteadyNow() + (result_.stop_signal == 0 ? options_.grace : kUncaughtGrace);
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->process->SignalGroup(SIGTERM);
    rank->process->SignalGroup(SIGCONT);
    rank->kill_at = std::min(rank->kill_at, kill_at);
  }
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
      running.push_back(FirstRank() + static_cast<int>(r));
    }
  }
  return running;
}

absl::Status CheckNodes(const LaunchOptions& options) {
  if (options.nnodes < 1 || options.node_rank < 0 || options.node_rank >= options.nnodes ||
      options.nnodes > std::numeric_limits<int>::max() / options.nproc) {
    return absl::InvalidArgumentError(absl::StrCat("host ", options.node_rank, " of ", options.nnodes, " with ",
                                                   options.nproc,
                                                   " ranks each: expected a number of hosts of at least "
                                                   "1, and a host's own number from 0 to one less than that"));
  }
  if (options.master_port < 0 || options.master_port > std::numeric_limits<uint16_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("master port ", options.master_port, ", at most 65535"));
  }
  if (options.nnodes > 1 && (options.master_addr.empty() || options.master_port == 0)) {
    return absl::InvalidArgumentError(absl::StrCat("a job on ", options.nnodes, " hosts needs a master ",
                                                   options.master_addr.empty() ? "address" : "port",
                                                   ": a name of host 0, and a free port of it, the same on all hosts"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckNproc(options.nproc));
  FSDP_RETURN_IF_ERROR(CheckNodes(options));
  if (options.command.empty()) {
    return absl::InvalidArgumentError("there is no program to launch");
  }
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ForwardedSignals> signals, ForwardedSignals::Block());
  Job job(options);
  FSDP_RETURN_IF_ERROR(job.Start());
  return job.Run(*signals);
}

}  // namespace fsdp
