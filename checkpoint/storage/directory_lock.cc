// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/directory_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/storage/system_call.h"

namespace fsdp {
namespace {

// Maximum number of bytes of a command line in a message.
constexpr size_t kCommandBytes = 200;

// The process that holds a flock on the file `info`, from the kernel's table of locks; 0 if the table does not list it,
// because the process is on another host or in another container.
int HolderOf(const struct stat& info) {
  // "1: FLOCK  ADVISORY  WRITE 3306 fe:00:10961284 0 EOF": the device in hexadecimal, the inode in decimal.
  const std::string place = absl::StrFormat("%02x:%02x:%d", major(info.st_dev), minor(info.st_dev), info.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    int pid = 0;
    // A line with "->" describes a process that waits for the lock; its fields are shifted by one.
    if (fields.size() < 6 || fields[1] != "FLOCK" || fields[5] != place) continue;
    if (absl::SimpleAtoi(fields[4], &pid) && pid > 0) return pid;
  }
  return 0;
}

// "process 1234 (ckpt repair runs/step-00000100)"
std::string DescribeProcess(int pid) {
  if (pid == 0) return "another process";
  std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
  std::string command{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::replace(command.begin(), command.end(), '\0', ' ');
  command = std::string(absl::StripAsciiWhitespace(command));
  if (command.size() > kCommandBytes) command = command.substr(0, kCommandBytes) + "...";
  return command.empty() ? absl::StrCat("process ", pid) : absl::StrCat("process ", pid, " (", Printable(command), ")");
}

absl::Status CannotLock(const std::string& path) {
  if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, " does not exist"));
  if (errno == ENOTDIR) return absl::InvalidArgumentError(absl::StrCat(path, " is not a directory"));
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock directory ", path));
}

}  // namespace

absl::StatusOr<DirectoryLock> DirectoryLock::Take(const std::string& path) {
  const int fd = RetryInterrupted([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) return CannotLock(path);
  DirectoryLock lock(fd);
  struct stat by_fd, by_name;
  const FlockResult result = TryFlock(fd);
  if (result == FlockResult::kError || fstat(fd, &by_fd) != 0) return CannotLock(path);
  if (result == FlockResult::kTaken) {
    return absl::UnavailableError(
        absl::StrCat(path, " is being changed by ", DescribeProcess(HolderOf(by_fd)), "; wait until that ends"));
  }
  // The previous holder may have renamed the directory between our open and our flock: then this lock is on a directory
  // that no longer has the name `path`.
  if (stat(path.c_str(), &by_name) != 0) return CannotLock(path);
  if (by_fd.st_ino != by_name.st_ino || by_fd.st_dev != by_name.st_dev) {
    return absl::UnavailableError(absl::StrCat(path, " was replaced by another process just now; try again"));
  }
  return lock;
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  if (this != &other) {
    Release();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void DirectoryLock::Release() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

}  // namespace fsdp
