// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/process_handle.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace fsdp {

absl::StatusOr<ProcessHandle> ProcessHandle::Open(int pid) {
  FileDescriptor fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot watch process ", pid, ": ", std::strerror(errno)));
  }
  return ProcessHandle(pid, std::move(fd));
}

bool ProcessHandle::IsAlive() const {
  pollfd ended = {.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) != 1;
}

}  // namespace fsdp
