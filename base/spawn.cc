// SPDX-License-Identifier: Apache-2.0
//
// fork and exec, in this order:
//
//   parent: make the pipe, argv and the environment -> fork -> wait on the failure pipe -> return the child
//   child:                                                  -> streams, directory, signals -> execve
//
// The parent may have threads, and fork copies only the one that calls it: a lock that another thread held stays locked
// in the child for ever. Between fork and execve the child therefore makes only async-signal-safe calls; everything
// that allocates is prepared before. The failure pipe is close-on-exec: a successful execve closes it without a byte,
// and an error in the child arrives as its errno. So Spawn reports a program that cannot be executed, which a caller
// could not distinguish from a program that exits with 127.
#include "fsdp/base/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// The result points into `strings`, which must not change before execve. const_cast: execve takes char*, but does not
// write.
std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) {
    pointers.push_back(const_cast<char*>(s.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

bool IsExecutableFile(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

// Everything that the child needs between fork and exec.
struct Prepared {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const char* directory;  // "": the parent's directory
  pid_t parent;
  int inherited_fd;
  int input_fd;
  int output_fd;  // -1: unchanged
  int errors_fd;  // -1: unchanged
  int failure_fd;
};

// Only async-signal-safe calls from here on. Returns if the program cannot be executed, with errno.
void BecomeProgram(const Prepared& p) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != p.parent) {
    _exit(127);  // the parent ended before the death signal was set
  }
  // The mask survives execve. A program that started with SIGTERM blocked could not be stopped.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (dup2(p.input_fd, STDIN_FILENO) < 0) return;
  if (p.output_fd >= 0 && dup2(p.output_fd, STDOUT_FILENO) < 0) return;
  if (p.errors_fd >= 0 && dup2(p.errors_fd, STDERR_FILENO) < 0) return;
  if (p.inherited_fd >= 0 && fcntl(p.inherited_fd, F_SETFD, 0) != 0) return;
  if (*p.directory != '\0' && chdir(p.directory) != 0) return;
  execve(p.program, p.arguments, p.environment);
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

// Blocks until the child has executed the program or failed.
absl::Status AwaitExec(Pipe& failure, int pid, const std::string& program) {
  failure.write.Close();
  int error = 0;
  ssize_t n = 0;
  do {
    n = read(failure.read.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  // A short or empty read means that execve closed the pipe.
  if (n != sizeof(error)) {
    return absl::OkStatus();
  }
  waitpid(pid, nullptr, 0);
  return ExecError(error, program);
}

}  // namespace

absl::StatusOr<Pipe> Pipe::Create() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
  }
  return Pipe{.read = FileDescriptor(fds[0]), .write = FileDescriptor(fds[1])};
}

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  std::vector<std::string> candidates = {name};
  if (name.find('/') == std::string::npos) {
    candidates.clear();
    const char* const path = std::getenv("PATH");
    for (const std::string& directory :
         std::vector<std::string>(absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty()))) {
      candidates.push_back(absl::StrCat(directory, "/", name));
    }
  }
  // A candidate that exists but cannot be executed does not end the search, as in a shell; it only makes the error more
  // exact.
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

absl::StatusOr<int> Spawn(const SpawnOptions& options) {
  FSDP_ASSIGN_OR_RETURN(Pipe failure, Pipe::Create());
  // Allocated here and not in the child, which may not call malloc. The child has a copy of the memory.
  const std::vector<char*> arguments = Pointers(options.arguments);
  const std::vector<char*> environment = Pointers(options.environment);
  const Prepared prepared = {.program = options.program.c_str(),
                             .arguments = arguments.data(),
                             .environment = environment.data(),
                             .directory = options.directory.c_str(),
                             .parent = getpid(),
                             .inherited_fd = options.inherited_fd,
                             .input_fd = options.input_fd,
                             .output_fd = options.output_fd,
                             .errors_fd = options.errors_fd,
                             .failure_fd = failure.write.get()};
  const int pid = fork();
  if (pid == 0) {
    BecomeProgram(prepared);
    const int error = errno;
    const bool is_reported = write(prepared.failure_fd, &error, sizeof(error)) == sizeof(error);
    _exit(is_reported ? 127 : 126);
  }
  if (pid < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a process: ", std::strerror(errno)));
  }
  setpgid(pid, pid);  // both call it, so the group exists whichever runs first
  FSDP_RETURN_IF_ERROR(AwaitExec(failure, pid, prepared.program));
  return pid;
}

}  // namespace fsdp
