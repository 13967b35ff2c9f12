// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/launcher.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

struct Rank {
  ChildProcess process;
  std::unique_ptr<LastLines> last_lines;
  std::vector<RankOutput> outputs;  // that are still open
  std::optional<ExitStatus> ended = std::nullopt;
};

class Job {
 public:
  explicit Job(const LaunchOptions& options) : options_(options), deadline_(absl::Now() + options.timeout) {}

  // Kills what is left when the job cannot be started whole.
  ~Job() {
    SignalAll(SIGKILL);
    for (Rank& rank : ranks_) {
      if (!rank.ended.has_value()) {
        rank.process.Reap();
      }
    }
  }

  absl::Status Start();
  LaunchResult Run(ForwardedSignals& signals);

 private:
  std::vector<std::string> EnvironmentOf(int rank, int port, int store_fd) const;
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
  std::vector<Rank> ranks_;
  LaunchResult result_;
  absl::Time kill_at_ = absl::InfiniteFuture();  // set when the job is to end
};

absl::Status Job::Start() {
  const char* const path = std::getenv("PATH");
  FSDP_ASSIGN_OR_RETURN(const std::string program, FindProgram(options_.command[0], path == nullptr ? "" : path));
  FSDP_ASSIGN_OR_RETURN(const FileDescriptor listener, ListenTcp("127.0.0.1", 0));
  FSDP_ASSIGN_OR_RETURN(const int port, ListeningPort(listener.get()));
  for (int r = 0; r < options_.nproc; ++r) {
    const int store_fd = r == 0 ? listener.get() : -1;
    FSDP_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start({.program = program,
                                                                     .arguments = options_.command,
                                                                     .environment = EnvironmentOf(r, port, store_fd),
                                                                     .inherited_fd = store_fd,
                                                                     .capture_output = options_.prefix_output}));
    Rank rank = {.process = std::move(process), .last_lines = std::make_unique<LastLines>(), .outputs = {}};
    if (options_.prefix_output) {
      const std::string prefix = absl::StrCat("[rank ", r, "] ");
      rank.outputs.emplace_back(rank.process.output().get(), STDOUT_FILENO, prefix, rank.last_lines.get());
      rank.outputs.emplace_back(rank.process.errors().get(), STDERR_FILENO, prefix, rank.last_lines.get());
    }
    ranks_.push_back(std::move(rank));
  }
  return absl::OkStatus();
}

// This process's environment, less what an outer job may have left in it, plus the rank's.
std::vector<std::string> Job::EnvironmentOf(int rank, int port, int store_fd) const {
  std::vector<std::pair<std::string, std::string>> own = {
      {"RANK", absl::StrCat(rank)},       {"WORLD_SIZE", absl::StrCat(options_.nproc)},
      {"LOCAL_RANK", absl::StrCat(rank)}, {"LOCAL_WORLD_SIZE", absl::StrCat(options_.nproc)},
      {"MASTER_ADDR", "127.0.0.1"},       {"MASTER_PORT", absl::StrCat(port)}};
  own.emplace_back(kStoreDescriptorVariable, store_fd < 0 ? "" : absl::StrCat(store_fd));
  for (const char* name : {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    own.emplace_back(name, "");
  }
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (std::none_of(own.begin(), own.end(), [&](const auto& variable) { return variable.first == name; })) {
      environment.push_back(text);
    }
  }
  for (const auto& [name, value] : own) {
    if (!value.empty()) {
      environment.push_back(absl::StrCat(name, "=", value));
    }
  }
  return environment;
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
  PassOutput();  // what was written last; a process that left its rank's group may hold the pipe open for ever
  if (result_.failed_rank >= 0) {
    const std::deque<std::string>& lines = ranks_[result_.failed_rank].last_lines->lines();
    result_.last_lines.assign(lines.begin(), lines.end());
  }
  return result_;
}

std::vector<pollfd> Job::Poll(const ForwardedSignals& signals) const {
  std::vector<pollfd> polled = {{.fd = signals.fd(), .events = POLLIN, .revents = 0}};
  for (const Rank& rank : ranks_) {
    if (!rank.ended.has_value()) {
      polled.push_back({.fd = rank.process.ended_fd(), .events = POLLIN, .revents = 0});
    }
    for (const RankOutput& output : rank.outputs) {
      polled.push_back({.fd = output.source(), .events = POLLIN, .revents = 0});
    }
  }
  if (poll(polled.data(), polled.size(), PollTimeout(std::min(deadline_, kill_at_))) <= 0) {
    polled[0].revents = 0;
  }
  return polled;
}

void Job::PassOutput() {
  for (Rank& rank : ranks_) {
    rank.outputs.erase(
        std::remove_if(rank.outputs.begin(), rank.outputs.end(), [](RankOutput& output) { return !output.Pass(); }),
        rank.outputs.end());
  }
}

// Of several ranks that ended since the last look, one that was killed is the likelier cause: the others notice its
// death and fail within milliseconds.
void Job::ReapEnded() {
  int failed = -1;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    pollfd ended = {.fd = rank.process.ended_fd(), .events = POLLIN, .revents = 0};
    if (rank.ended.has_value() || poll(&ended, 1, 0) != 1) {
      continue;
    }
    rank.ended = rank.process.Reap();
    if (!rank.ended->ok() && (failed < 0 || (rank.ended->signal != 0 && ranks_[failed].ended->signal == 0))) {
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
  result_.exit_code = ranks_[rank].ended->shell_code();
  result_.failed_rank = rank;
  result_.description = absl::StrCat("rank ", rank, " of ", options_.nproc, " ", ranks_[rank].ended->ToString());
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
  for (Rank& rank : ranks_) {
    if (!rank.ended.has_value()) {
      rank.process.Signal(signal);
    }
  }
}

std::vector<int> Job::Running() const {
  std::vector<int> running;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].ended.has_value()) {
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
