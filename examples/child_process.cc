// SPDX-License-Identifier: Apache-2.0
#include "examples/child_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

extern char** environ;

namespace fsdp {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentOf(const ChildOptions& options) {
  std::vector<std::string> environment;
  for (const auto& [name, value] : options.environment) environment.push_back(absl::StrCat(name, "=", value));
  std::set<std::string> replaced(options.unset.begin(), options.unset.end());
  for (const auto& [name, value] : options.environment) replaced.insert(name);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (replaced.count(text.substr(0, text.find('='))) == 0) environment.push_back(text);
  }
  return environment;
}

// posix_spawn, with stdout and stderr to `output_fd`, in a process group of its own.
absl::StatusOr<pid_t> Spawn(std::vector<std::string> command, const ChildOptions& options, int output_fd) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output_fd, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, output_fd, STDERR_FILENO);
  if (!options.working_directory.empty()) {
    posix_spawn_file_actions_addchdir_np(&files, options.working_directory.c_str());
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> environment = EnvironmentOf(options);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, command[0].c_str(), &files, &attributes, Pointers(command).data(),
                                Pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return pid;
  return absl::NotFoundError(absl::StrFormat("%s: cannot be run: %s", command[0], std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::vector<std::string>& command,
                                                                  const ChildOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const absl::StatusOr<pid_t> pid = Spawn(command, options, ends[1]);
  close(ends[1]);
  if (!pid.ok()) close(ends[0]);
  RETURN_IF_ERROR(pid.status());
  return std::unique_ptr<ChildProcess>(new ChildProcess(*pid, ends[0]));
}

ChildProcess::~ChildProcess() {
  if (!reaped_) {
    SignalGroup(SIGKILL);
    while (waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
    }
  }
  close(output_fd_);
}

void ChildProcess::Signal(int signal) {
  if (!reaped_) kill(pid_, signal);
}

void ChildProcess::SignalGroup(int signal) {
  if (!reaped_) kill(-pid_, signal);
}

bool ChildProcess::Reap() {
  if (!reaped_ && waitpid(pid_, &wait_status_, WNOHANG) == pid_) reaped_ = true;
  return reaped_;
}

bool ChildProcess::ReadOutput(absl::Duration timeout) {
  if (output_ended_) return false;
  pollfd readable = {.fd = output_fd_, .events = POLLIN, .revents = 0};
  const int64_t milliseconds = std::max<int64_t>(0, absl::ToInt64Milliseconds(timeout));
  if (poll(&readable, 1, static_cast<int>(std::min<int64_t>(milliseconds, 1000))) <= 0) return true;
  char bytes[4096];
  const ssize_t count = read(output_fd_, bytes, sizeof(bytes));
  if (count > 0) output_.append(bytes, count);
  output_ended_ = count == 0;
  return !output_ended_;
}

absl::StatusOr<int> ChildProcess::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const absl::Duration tick = absl::Milliseconds(20);  // a child that hands its output on may end without closing it
  while (!Reap()) {
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrFormat("process %d has not ended within %s; its output so far:\n%s",
                                                         pid_, absl::FormatDuration(timeout), output_));
    }
    if (!ReadOutput(tick)) absl::SleepFor(tick);
  }
  while (!output_ended_) {
    const size_t before = output_.size();
    if (!ReadOutput(absl::ZeroDuration()) || output_.size() == before) break;
  }
  return WIFSIGNALED(wait_status_) ? 128 + WTERMSIG(wait_status_) : WEXITSTATUS(wait_status_);
}

absl::Status ChildProcess::WaitForOutput(std::string_view text, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (output_.find(text) == std::string::npos) {
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrFormat("process %d has not printed \"%s\" within %s, but:\n%s", pid_,
                                                         std::string(text), absl::FormatDuration(timeout), output_));
    }
    if (!ReadOutput(deadline - absl::Now()) && output_.find(text) == std::string::npos) {
      return absl::FailedPreconditionError(
          absl::StrFormat("process %d ended without printing \"%s\", but:\n%s", pid_, std::string(text), output_));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ChildResult> RunChild(const std::vector<std::string>& command, absl::Duration timeout,
                                     const ChildOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> child, ChildProcess::Start(command, options));
  ASSIGN_OR_RETURN(const int exit_status, child->Wait(timeout));
  return ChildResult{exit_status, child->output()};
}

std::vector<pid_t> ProcessesWith(std::string_view text) {
  std::vector<pid_t> found;
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return found;
  while (const dirent* entry = readdir(processes)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid == getpid()) continue;
    std::ifstream stream(absl::StrCat("/proc/", pid, "/cmdline"), std::ios::binary);
    const std::string command_line(std::istreambuf_iterator<char>(stream), {});
    if (command_line.find(text) != std::string::npos) found.push_back(pid);
  }
  closedir(processes);
  return found;
}

}  // namespace fsdp
