// SPDX-License-Identifier: Apache-2.0
//
// ChildProcess: a program started so that it cannot outlive the thread that started it: the kernel kills it (SIGKILL)
// when that thread ends, for whatever reason. It leads a process group of its own, which is signalled and killed as
// one.
#ifndef FSDP_BASE_CHILD_PROCESS_H_
#define FSDP_BASE_CHILD_PROCESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

struct ChildOptions {
  std::string program;                   // path
  std::vector<std::string> arguments;    // argv, the program's name first
  std::vector<std::string> environment;  // "NAME=value"
  int inherited_fd = -1;                 // stays open in the child under its number; all others that are CLOEXEC close
  bool capture_output = false;           // through output() and errors(); else the child writes where this process does
};

// How a process ended.
struct ExitStatus {
  int code = 0;    // what it exited with; 0 when a signal killed it
  int signal = 0;  // that killed it; 0 when it exited

  bool ok() const { return code == 0 && signal == 0; }

  // As a shell has it: the exit status, or 128 + signal.
  int shell_code() const { return signal == 0 ? code : 128 + signal; }

  // "exited with status 3", "was killed by signal 9 (Killed)"
  std::string ToString() const;
};

class ChildProcess {
 public:
  // Standard input is /dev/null, and no signal is blocked. kNotFound or kPermissionDenied when the program cannot be
  // executed.
  static absl::StatusOr<ChildProcess> Start(const ChildOptions& options);

  ChildProcess(ChildProcess&&) = default;
  ChildProcess& operator=(ChildProcess&&) = default;

  int pid() const { return pid_; }

  // Readable from the end of the process on.
  int ended_fd() const { return ended_.get(); }

  // Non-blocking ends of the child's stdout and stderr, if captured.
  const FileDescriptor& output() const { return output_; }
  const FileDescriptor& errors() const { return errors_; }

  // To the process and what it started, if that stayed in its group. No-op once reaped.
  void Signal(int signal) const;

  // To be called once ended_fd is readable: kills what is left of the group and returns how the process ended.
  ExitStatus Reap();

 private:
  ChildProcess() = default;

  int pid_ = -1;
  bool reaped_ = false;
  FileDescriptor ended_;
  FileDescriptor output_;
  FileDescriptor errors_;
};

// The path of `name` as a shell would find it: itself if it has a slash, else in `path`, such as "/usr/bin:/bin".
// kNotFound; kPermissionDenied when it is there but not executable.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path);

}  // namespace fsdp

#endif  // FSDP_BASE_CHILD_PROCESS_H_
