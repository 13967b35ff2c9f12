// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/process_handle.h"

#include <dirent.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fsdp {

absl::StatusOr<ProcessHandle> ProcessHandle::Open(int pid) {
  FileDescriptor fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot watch process ", pid, ": ", std::strerror(errno)));
  }
  return ProcessHandle(pid, std::move(fd));
}

// A pidfd is readable once the process has ended, also while it is a zombie (pidfd_open(2)).
bool ProcessHandle::IsAlive() const {
  pollfd ended = {.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) != 1;
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
