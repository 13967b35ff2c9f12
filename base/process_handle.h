// SPDX-License-Identifier: Apache-2.0
//
// Processes that are not children of this one (child_process.h starts children). A ProcessHandle is a pidfd: it reports
// whether a process still runs, and is not confused by a later process with the same number, as kill(pid, 0) would be.
// Thread-safe.
#ifndef FSDP_BASE_PROCESS_HANDLE_H_
#define FSDP_BASE_PROCESS_HANDLE_H_

#include <sys/types.h>

#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

class ProcessHandle {
 public:
  // kUnavailable, with the reason, if there is no such process, if this process has no descriptor left, or if the
  // kernel has no pidfd_open (before Linux 5.3).
  static absl::StatusOr<ProcessHandle> Open(int pid);

  // The number of the process. Another process may have it after this one has ended.
  int pid() const { return pid_; }

  // False as soon as the last thread of the process has ended, even if its parent has not reaped it. One system call;
  // never blocks.
  bool IsAlive() const;

 private:
  ProcessHandle(int pid, FileDescriptor fd) : pid_(pid), fd_(std::move(fd)) {}

  int pid_;
  FileDescriptor fd_;
};

// The processes of this machine, except this one, whose command line contains `text`: the processes that a run has left
// behind, if its arguments name a directory that no other run uses. Zombies, and processes that have not executed their
// program yet, have no command line and are left out. Reads all of /proc.
std::vector<pid_t> ProcessesWith(std::string_view text);

}  // namespace fsdp

#endif  // FSDP_BASE_PROCESS_HANDLE_H_
