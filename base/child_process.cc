// SPDX-License-Identifier: Apache-2.0
//
// Between fork and exec the child, which may be a copy of a process with threads and locks, does only what is safe in a
// signal handler: everything it needs is prepared before. What fails there is sent to the parent through a pipe that a
// successful exec closes.
#include "fsdp/base/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;

  static absl::StatusOr<Pipe> Create() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
    }
    return Pipe{.read = FileDescriptor(fds[0]), .write = FileDescriptor(fds[1])};
  }
};

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) {
    pointers.push_back(const_cast<char*>(s.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// All that the child needs, by value or prepared.
struct Prepared {
  const char* program;
  char* const* arguments;
  char* const* environment;
  pid_t parent;
  int inherited_fd;
  int null_fd;
  int output_fd;  // -1: stays as it is
  int errors_fd;
  int failure_fd;
};

// Only async-signal-safe calls from here on.
[[noreturn]] void BecomeProgram(const Prepared& p) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != p.parent) {
    _exit(127);  // the parent ended before the death signal was set
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(p.null_fd, STDIN_FILENO);
  if (p.output_fd >= 0) {
    dup2(p.output_fd, STDOUT_FILENO);
    dup2(p.errors_fd, STDERR_FILENO);
  }
  if (p.inherited_fd >= 0) {
    fcntl(p.inherited_fd, F_SETFD, 0);
  }
  execve(p.program, p.arguments, p.environment);
  const int error = errno;
  if (write(p.failure_fd, &error, sizeof(error)) != sizeof(error)) {
    _exit(126);
  }
  _exit(127);
}

absl::Status ExecError(int error, const std::string& program) {
  const std::string text = absl::StrCat("cannot execute ", program, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EACCES:
      return absl::PermissionDeniedError(text);
    default:
      return absl::InvalidArgumentError(text);
  }
}

// Waits for the exec: nothing comes through the pipe when it succeeds.
absl::Status AwaitExec(Pipe& failure, int pid, const std::string& program) {
  failure.write.Close();
  int error = 0;
  ssize_t n = 0;
  do {
    n = read(failure.read.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n != sizeof(error)) {
    return absl::OkStatus();
  }
  waitpid(pid, nullptr, 0);
  return ExecError(error, program);
}

bool IsExecutableFile(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string ExitStatus::ToString() const {
  return signal == 0 ? absl::StrCat("exited with status ", code)
                     : absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildOptions& options) {
  const std::vector<char*> arguments = Pointers(options.arguments);
  const std::vector<char*> environment = Pointers(options.environment);
  const FileDescriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  FSDP_ASSIGN_OR_RETURN(Pipe failure, Pipe::Create());
  std::optional<Pipe> output;
  std::optional<Pipe> errors;
  if (options.capture_output) {
    FSDP_ASSIGN_OR_RETURN(output, Pipe::Create());
    FSDP_ASSIGN_OR_RETURN(errors, Pipe::Create());
  }
  const Prepared prepared = {.program = options.program.c_str(),
                             .arguments = arguments.data(),
                             .environment = environment.data(),
                             .parent = getpid(),
                             .inherited_fd = options.inherited_fd,
                             .null_fd = null.get(),
                             .output_fd = output.has_value() ? output->write.get() : -1,
                             .errors_fd = errors.has_value() ? errors->write.get() : -1,
                             .failure_fd = failure.write.get()};
  ChildProcess child;
  child.pid_ = fork();
  if (child.pid_ == 0) {
    BecomeProgram(prepared);
  }
  if (child.pid_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a process: ", std::strerror(errno)));
  }
  setpgid(child.pid_, child.pid_);  // here too: the first to get there makes it true for both
  FSDP_RETURN_IF_ERROR(AwaitExec(failure, child.pid_, options.program));
  child.ended_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, child.pid_, 0)));
  if (options.capture_output) {
    child.output_ = std::move(output->read);
    child.errors_ = std::move(errors->read);
    fcntl(child.output_.get(), F_SETFL, O_NONBLOCK);
    fcntl(child.errors_.get(), F_SETFL, O_NONBLOCK);
  }
  return child;
}

void ChildProcess::Signal(int signal) const {
  if (!reaped_) {
    kill(-pid_, signal);
  }
}

// The group is killed while the leader is a zombie, so that its number cannot belong to anybody else yet.
ExitStatus ChildProcess::Reap() {
  siginfo_t ended = {};
  waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT);
  kill(-pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  return WIFSIGNALED(status) ? ExitStatus{.code = 0, .signal = WTERMSIG(status)}
                             : ExitStatus{.code = WEXITSTATUS(status), .signal = 0};
}

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path) {
  std::vector<std::string> candidates = {name};
  if (name.find('/') == std::string::npos) {
    candidates.clear();
    for (const std::string& directory : std::vector<std::string>(absl::StrSplit(path, ':', absl::SkipEmpty()))) {
      candidates.push_back(absl::StrCat(directory, "/", name));
    }
  }
  bool exists = false;
  for (const std::string& candidate : candidates) {
    if (IsExecutableFile(candidate)) {
      return candidate;
    }
    exists |= access(candidate.c_str(), F_OK) == 0;
  }
  return exists ? absl::PermissionDeniedError(absl::StrCat("program \"", name, "\" is not an executable file"))
                : absl::NotFoundError(absl::StrCat("program \"", name, "\" does not exist"));
}

}  // namespace fsdp
