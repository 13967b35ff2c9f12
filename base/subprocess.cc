// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/subprocess.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
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
#include "fsdp/base/status_macros.h"

extern char** environ;

namespace fsdp {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentOf(const SubprocessOptions& options) {
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

// What the child does between fork and exec; only what is safe in a process that had several threads. Returns when it
// failed, with errno.
void Become(char* const* command, char* const* environment, const char* directory, int output_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no child outlives this program, however that ends
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0) return;
  if (dup2(output_fd, STDOUT_FILENO) < 0 || dup2(output_fd, STDERR_FILENO) < 0) return;
  if (*directory != '\0' && chdir(directory) != 0) return;
  execve(command[0], command, environment);
}

absl::StatusOr<pid_t> Spawn(std::vector<std::string> command, const SubprocessOptions& options, int output_fd) {
  int error_pipe[2];  // closed by a successful exec, else gets errno
  if (pipe2(error_pipe, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  std::vector<std::string> environment = EnvironmentOf(options);
  const std::vector<char*> arguments = Pointers(command);
  const std::vector<char*> variables = Pointers(environment);
  const pid_t pid = fork();
  if (pid == 0) {
    Become(arguments.data(), variables.data(), options.working_directory.c_str(), output_fd);
    const int error = errno;
    const bool told = write(error_pipe[1], &error, sizeof(error)) == sizeof(error);
    _exit(told ? 127 : 126);
  }
  const int fork_error = errno;
  close(error_pipe[1]);
  int error = pid < 0 ? fork_error : 0;
  if (pid > 0 && read(error_pipe[0], &error, sizeof(error)) == sizeof(error)) waitpid(pid, nullptr, 0);
  close(error_pipe[0]);
  if (error == 0) return pid;
  return absl::NotFoundError(absl::StrFormat("%s: cannot be run: %s", command[0], std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Subprocess>> Subprocess::Start(const std::vector<std::string>& command,
                                                              const SubprocessOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const absl::StatusOr<pid_t> pid = Spawn(command, options, ends[1]);
  close(ends[1]);
  if (!pid.ok()) close(ends[0]);
  FSDP_RETURN_IF_ERROR(pid.status());
  return std::unique_ptr<Subprocess>(new Subprocess(*pid, ends[0]));
}

Subprocess::~Subprocess() {
  if (!reaped_) {
    SignalGroup(SIGKILL);
    while (waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
    }
  }
  close(output_fd_);
}

void Subprocess::Signal(int signal) {
  if (!reaped_) kill(pid_, signal);
}

void Subprocess::SignalGroup(int signal) {
  if (!reaped_) kill(-pid_, signal);
}

bool Subprocess::Reap() {
  if (!reaped_ && waitpid(pid_, &wait_status_, WNOHANG) == pid_) reaped_ = true;
  return reaped_;
}

bool Subprocess::ReadOutput(absl::Duration timeout) {
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

absl::StatusOr<int> Subprocess::Wait(absl::Duration timeout) {
  if (const std::optional<int> exit_status = Poll(timeout)) return *exit_status;
  return absl::DeadlineExceededError(absl::StrFormat("process %d has not ended within %s; its output so far:\n%s", pid_,
                                                     absl::FormatDuration(timeout), output_));
}

std::optional<int> Subprocess::Poll(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const absl::Duration tick = absl::Milliseconds(20);  // a child that hands its output on may end without closing it
  while (!Reap()) {
    if (absl::Now() > deadline) return std::nullopt;
    if (!ReadOutput(std::min(tick, timeout))) absl::SleepFor(tick);
  }
  while (!output_ended_) {
    const size_t before = output_.size();
    if (!ReadOutput(absl::ZeroDuration()) || output_.size() == before) break;
  }
  return WIFSIGNALED(wait_status_) ? 128 + WTERMSIG(wait_status_) : WEXITSTATUS(wait_status_);
}

absl::Status Subprocess::WaitForOutput(std::string_view text, absl::Duration timeout) {
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

absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& command, absl::Duration timeout,
                                         const SubprocessOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Subprocess> child, Subprocess::Start(command, options));
  FSDP_ASSIGN_OR_RETURN(const int exit_status, child->Wait(timeout));
  return ProgramResult{exit_status, child->output()};
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
