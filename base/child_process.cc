// SPDX-License-Identifier: Apache-2.0
//
// The child's process group is killed when the child is reaped. The order matters: the group's number is the child's
// pid, which the kernel does not reuse while the child is a zombie.
#include "fsdp/base/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/spawn.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"

namespace fsdp {
namespace {

// Bounds the memory of a child that writes no newline (ChildOutput::Lines).
constexpr size_t kLongestLine = 1 << 16;

// How often to check for the end of a child on kernels without pidfd_open (before Linux 5.3).
constexpr absl::Duration kTick = absl::Milliseconds(20);

// A descriptor at its end of file: /dev/null, or, if there is no /dev, a pipe whose writing end is closed.
FileDescriptor OpenEmptyInput() {
  FileDescriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null.ok()) return null;
  absl::StatusOr<Pipe> pipe = Pipe::Create();
  return pipe.ok() ? std::move(pipe->read) : FileDescriptor();
}

// "NAME=value" for execve: the variables of `options` first, then the variables of this process that are neither
// replaced nor unset.
std::vector<std::string> EnvironmentOf(const ChildOptions& options) {
  std::vector<std::string> environment;
  std::set<std::string> replaced(options.unset.begin(), options.unset.end());
  for (const auto& [name, value] : options.environment) {
    environment.push_back(absl::StrCat(name, "=", value));
    replaced.insert(name);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (replaced.count(text.substr(0, text.find('='))) == 0) {
      environment.push_back(text);
    }
  }
  return environment;
}

// The time until `deadline` in the unit of poll(): rounded up, so that the loop does not spin in the last millisecond,
// and at most 24 days.
int MillisecondsUntil(absl::Time deadline) {
  const int64_t milliseconds = absl::ToInt64Milliseconds(deadline - SteadyNow() + absl::Microseconds(999));
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, std::numeric_limits<int>::max()));
}

}  // namespace

ChildOutput ChildOutput::File(std::string path) {
  ChildOutput target(Kind::kFile);
  target.path_ = std::move(path);
  return target;
}

ChildOutput ChildOutput::Descriptor(int fd) {
  ChildOutput target(Kind::kDescriptor);
  target.fd_ = fd;
  return target;
}

ChildOutput ChildOutput::Lines(std::function<void(absl::string_view line)> on_line) {
  ChildOutput target(Kind::kLines);
  target.on_line_ = std::move(on_line);
  return target;
}

std::string ExitStatus::ToString() const {
  return signal == 0 ? absl::StrCat("exited with status ", code)
                     : absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
}

// The reading end of a pipe is non-blocking, because the parent reads both streams in turn. The writing end stays
// blocking, as programs expect of their stdout.
absl::StatusOr<FileDescriptor> ChildProcess::Open(const ChildOutput& target, Stream& stream) {
  switch (target.kind_) {
    case ChildOutput::Kind::kInherit:
    case ChildOutput::Kind::kSameAsOutput:
      return FileDescriptor();
    case ChildOutput::Kind::kFile: {
      FileDescriptor file(open(target.path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
      if (file.ok()) return file;
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot write the output of a program to ", target.path_));
    }
    case ChildOutput::Kind::kDescriptor: {
      // 3 or more: dup2 in the child must not overwrite a descriptor that it still needs.
      FileDescriptor copy(fcntl(target.fd_, F_DUPFD_CLOEXEC, 3));
      if (copy.ok()) return copy;
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot give descriptor ", target.fd_, " to a program"));
    }
    case ChildOutput::Kind::kText:
    case ChildOutput::Kind::kLines:
      break;
  }
  FSDP_ASSIGN_OR_RETURN(Pipe pipe, Pipe::Create());
  fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  stream.fd = std::move(pipe.read);
  stream.on_line = target.on_line_;
  return std::move(pipe.write);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::vector<std::string>& command,
                                                                  const ChildOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::string program, FindProgram(command[0]));
  std::unique_ptr<ChildProcess> child(new ChildProcess());
  FSDP_ASSIGN_OR_RETURN(const FileDescriptor output, Open(options.output, child->output_));
  FSDP_ASSIGN_OR_RETURN(const FileDescriptor errors, Open(options.errors, child->errors_));
  const bool is_errors_as_output = options.errors.kind_ == ChildOutput::Kind::kSameAsOutput;
  const FileDescriptor null = options.input_fd < 0 ? OpenEmptyInput() : FileDescriptor();
  FSDP_ASSIGN_OR_RETURN(child->pid_, Spawn({.program = program,
                                            .arguments = command,
                                            .environment = EnvironmentOf(options),
                                            .directory = options.working_directory,
                                            .inherited_fd = options.inherited_fd,
                                            .input_fd = options.input_fd < 0 ? null.get() : options.input_fd,
                                            .output_fd = output.get(),
                                            .errors_fd = is_errors_as_output ? STDOUT_FILENO : errors.get()}));
  // -1 on kernels without pidfds: PollDeadline then replaces the event.
  child->ended_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, child->pid_, 0)));
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !exit_status_.has_value()) {
    SignalGroup(SIGKILL);
    ReapBlocking();
  }
}

void ChildProcess::Signal(int signal) const {
  if (!exit_status_.has_value()) {
    kill(pid_, signal);
  }
}

void ChildProcess::SignalGroup(int signal) const {
  if (!exit_status_.has_value()) {
    kill(-pid_, signal);
  }
}

// The lines "SigBlk:	0000000000004002" and "SigCgt:	0000000180014a07" of proc(5): bit n - 1 is signal n.
bool ChildProcess::Catches(int signal) const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  uint64_t caught = 0;
  for (std::string line; !exit_status_.has_value() && std::getline(status, line);) {
    uint64_t signals = 0;
    const bool counts = absl::StartsWith(line, "SigBlk:") || absl::StartsWith(line, "SigCgt:");
    if (counts && absl::SimpleHexAtoi(line.substr(7), &signals)) caught |= signals;
  }
  return (caught >> (signal - 1) & 1) != 0;
}

const std::optional<ExitStatus>& ChildProcess::Reap() {
  siginfo_t ended = {};
  if (!exit_status_.has_value() && waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT | WNOHANG) == 0 &&
      ended.si_pid == pid_) {
    ReapBlocking();
  }
  return exit_status_;
}

// WNOWAIT leaves the child a zombie, so that its group's number cannot belong to another process when the group is
// killed.
void ChildProcess::ReapBlocking() {
  siginfo_t ended = {};
  while (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  kill(-pid_, SIGKILL);
  int status = 0;
  struct rusage usage = {};
  wait4(pid_, &status, 0, &usage);
  exit_status_ = {.code = WIFSIGNALED(status) ? 0 : WEXITSTATUS(status),
                  .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                  .peak_bytes = usage.ru_maxrss * int64_t{1024}};
}

void ChildProcess::AppendPollFds(std::vector<pollfd>& polled) const {
  const int ended = exit_status_.has_value() ? -1 : ended_.get();
  for (const int fd : {ended, output_.fd.get(), errors_.fd.get()}) {
    if (fd >= 0) {
      polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    }
  }
}

void ChildProcess::Stream::Read() {
  for (int reads = 0; fd.ok() && reads < 16; ++reads) {
    char bytes[1 << 14];
    const ssize_t n = read(fd.get(), bytes, sizeof(bytes));
    if (n > 0) {
      Take({bytes, static_cast<size_t>(n)});
      continue;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    }
    fd.Close();
    if (!line.empty()) {
      on_line(std::exchange(line, ""));
    }
  }
}

void ChildProcess::Stream::Take(absl::string_view bytes) {
  if (on_line == nullptr) {
    text.append(bytes.data(), bytes.size());
    return;
  }
  for (const char c : bytes) {
    if (c != '\n') {
      line += c;
    }
    // The newline that follows a piece of exactly kLongestLine bytes yields an empty line.
    if (c == '\n' || line.size() >= kLongestLine) {
      on_line(std::exchange(line, ""));
    }
  }
}

void ChildProcess::ReadOutput() {
  output_.Read();
  errors_.Read();
}

void ChildProcess::AwaitEvent(absl::Time deadline) const {
  std::vector<pollfd> polled;
  AppendPollFds(polled);
  poll(polled.data(), polled.size(), MillisecondsUntil(std::min(deadline, PollDeadline())));
}

absl::Time ChildProcess::PollDeadline() const {
  return ended_.ok() || exit_status_.has_value() ? absl::InfiniteFuture() : SteadyNow() + kTick;
}

std::optional<int> ChildProcess::Poll(absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (!Reap().has_value()) {
    if (SteadyNow() > deadline) return std::nullopt;
    AwaitEvent(deadline);
    ReadOutput();
  }
  ReadOutput();  // reads everything: up to 256 KiB, and a pipe holds 64 KiB
  return exit_status_->shell_code();
}

absl::StatusOr<int> ChildProcess::Wait(absl::Duration timeout) {
  if (const std::optional<int> exit_status = Poll(timeout)) return *exit_status;
  return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " has not ended within ",
                                                  absl::FormatDuration(timeout), "; its output so far:\n", output()));
}

absl::Status ChildProcess::WaitForOutput(absl::string_view text, absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (!absl::StrContains(output(), text)) {
    if (!output_.fd.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("process ", pid_, " ended without printing \"", text, "\", but:\n", output()));
    }
    if (SteadyNow() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " has not printed \"", text, "\" within ",
                                                      absl::FormatDuration(timeout), ", but:\n", output()));
    }
    std::vector<pollfd> polled = {{.fd = output_.fd.get(), .events = POLLIN, .revents = 0}};
    if (errors_.fd.ok()) polled.push_back({.fd = errors_.fd.get(), .events = POLLIN, .revents = 0});
    poll(polled.data(), polled.size(), MillisecondsUntil(deadline));
    ReadOutput();
  }
  return absl::OkStatus();
}

absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& command, absl::Duration timeout,
                                         const ChildOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> child, ChildProcess::Start(command, options));
  FSDP_ASSIGN_OR_RETURN(const int exit_status, child->Wait(timeout));
  return ProgramResult{.exit_status = exit_status,
                       .output = child->output(),
                       .errors = child->errors(),
                       .peak_bytes = child->exit_status()->peak_bytes};
}

}  // namespace fsdp
