// SPDX-License-Identifier: Apache-2.0
//
// ProcessHandle: tells whether a process still runs, without being its parent and without mistaking a later process of
// the same number for it (a pidfd). Thread-safe.
#ifndef FSDP_BASE_PROCESS_HANDLE_H_
#define FSDP_BASE_PROCESS_HANDLE_H_

#include "absl/status/statusor.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

class ProcessHandle {
 public:
  // kUnavailable when there is no such process.
  static absl::StatusOr<ProcessHandle> Open(int pid);

  int pid() const { return pid_; }

  // False from the moment on when its last thread has ended, whether or not its parent has taken notice.
  bool IsAlive() const;

 private:
  ProcessHandle(int pid, FileDescriptor fd) : pid_(pid), fd_(std::move(fd)) {}

  int pid_;
  FileDescriptor fd_;
};

}  // namespace fsdp

#endif  // FSDP_BASE_PROCESS_HANDLE_H_
