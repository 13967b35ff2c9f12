// SPDX-License-Identifier: Apache-2.0
//
// FileSystem on the system calls of Linux. Two rules hold everywhere: a call that a signal may interrupt is repeated
// (RetryInterrupted), and every open is safe: O_NONBLOCK, since a FIFO would wait for its other end, and O_NOFOLLOW for
// files to be written, since a link placed in a shared directory could lead anywhere.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>  // renameat2
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/posix_file.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "fsdp/checkpoint/storage/system_call.h"

namespace fsdp {
namespace {

// The kind of a file that is not a regular file, for a message.
const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

absl::Status NotRegular(const std::string& path, const char* kind) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file, but ", kind));
}

// Rename on a file system without the flags of renameat2, such as NFS. rename(2) would replace a file that has the name
// `to`, and this host may not see yet that another one has made it; link never does. A directory cannot be linked, but
// rename replaces no directory that holds anything. Without hard links, a file that is made just now can be replaced.
absl::Status RenameWithoutFlags(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) == 0) {
    return unlink(from.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus("unlink", from);
  }
  bool exists = errno == EEXIST;
  if (!exists) {
    FSDP_ASSIGN_OR_RETURN(exists, IsThere(to));
  }
  if (!exists && rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  if (exists || errno == EEXIST || errno == ENOTEMPTY) return absl::AlreadyExistsError(absl::StrCat(to, " exists"));
  return ErrnoStatus(absl::StrCat("rename ", from, " to"), to);
}

// The status of an open that failed with errno.
absl::Status CannotOpen(const std::string& path) {
  const int error = errno;
  const absl::Status status = ErrnoStatus("open", path);
  if (error == ELOOP) return NotRegular(path, "a loop of links");
  // ENXIO and ENODEV can also mean that the path is a socket, or a device without a driver.
  struct stat info;
  const bool is_there = (error == ENXIO || error == ENODEV) && stat(path.c_str(), &info) == 0;
  return is_there ? NotRegular(path, KindOf(info.st_mode)) : status;
}

class Posix final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    const int fd = RetryInterrupted([&] { return open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    if (fd < 0) return ErrnoStatus("create", path);
    return std::make_unique<PosixFile>(fd, path);
  }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path) override {
    // O_NONBLOCK: a FIFO must not make the open wait for a writer.
    const int fd = RetryInterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    if (fd < 0) return CannotOpen(path);
    auto file = std::make_unique<PosixFile>(fd, path);
    struct stat info;
    if (fstat(fd, &info) != 0) return ErrnoStatus("stat", path);
    if (!S_ISREG(info.st_mode)) return NotRegular(path, KindOf(info.st_mode));
    return file;
  }

  absl::StatusOr<std::unique_ptr<File>> OpenToWrite(const std::string& path) override {
    const int fd = RetryInterrupted([&] { return open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
    if (fd < 0) return ErrnoStatus("open", path);
    return std::make_unique<PosixFile>(fd, path);
  }

  absl::StatusOr<std::unique_ptr<File>> OpenLocked(const std::string& path) override {
    const int fd = RetryInterrupted(
        [&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666); });
    if (fd < 0) return ErrnoStatus("open", path);
    const FlockResult lock = TryFlock(fd);
    if (lock == FlockResult::kError) {
      const absl::Status status = ErrnoStatus("lock", path);
      close(fd);
      return status;
    }
    auto file = std::make_unique<PosixFile>(
        fd, path, lock == FlockResult::kHeld ? PosixFile::Lock::kHeld : PosixFile::Lock::kNone);
    // The previous holder may have removed the file between our open and our flock: then this lock is on a file without
    // a name, and another process may create and lock a new one. So the name must still lead to the locked file.
    struct stat by_fd, by_name;
    if (fstat(fd, &by_fd) != 0) return ErrnoStatus("stat", path);
    const bool is_there = lstat(path.c_str(), &by_name) == 0;
    if (!is_there && errno != ENOENT) return ErrnoStatus("stat", path);
    const bool is_same = is_there && by_fd.st_ino == by_name.st_ino && by_fd.st_dev == by_name.st_dev;
    if (lock == FlockResult::kTaken || !is_same) {
      return absl::UnavailableError(absl::StrCat(path, " is locked by another process"));
    }
    return file;
  }

  absl::Status MakeDirectory(const std::string& path) override {
    return mkdir(path.c_str(), 0777) == 0 ? absl::OkStatus() : ErrnoStatus("make directory", path);
  }

  absl::Status RemoveDirectory(const std::string& path) override {
    return rmdir(path.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus("remove directory", path);
  }

  absl::Status Unlink(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus("unlink", path);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const int fd = RetryInterrupted([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return ErrnoStatus("open directory", path);
    const PosixFile closer(fd, path);
    return RetryInterrupted([&] { return fsync(fd); }) == 0 ? absl::OkStatus() : ErrnoStatus("fsync directory", path);
  }

  absl::Status Link(const std::string& from, const std::string& to) override {
    if (link(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    // The errors of file systems without hard links, or of a file with the maximum number of links.
    if (errno == EPERM || errno == EXDEV || errno == EOPNOTSUPP || errno == EMLINK || errno == ENOSYS) {
      return absl::UnimplementedError(std::string(ErrnoStatus(absl::StrCat("link ", from, " as"), to).message()));
    }
    return ErrnoStatus(absl::StrCat("link ", from, " as"), to);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return absl::OkStatus();
    if (errno == EEXIST || errno == ENOTEMPTY) return absl::AlreadyExistsError(absl::StrCat(to, " exists"));
    if (errno == EINVAL || errno == ENOSYS) return RenameWithoutFlags(from, to);
    return ErrnoStatus(absl::StrCat("rename ", from, " to"), to);
  }

  absl::Status Replace(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus(absl::StrCat("rename ", from, " to"), to);
  }

  absl::Status Exchange(const std::string& a, const std::string& b) override {
    if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return absl::OkStatus();
    if (errno == EINVAL || errno == ENOSYS) {
      return absl::UnimplementedError(absl::StrCat("the file system of ", b, " cannot exchange two names"));
    }
    return ErrnoStatus(absl::StrCat("exchange ", a, " and"), b);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    const int fd = RetryInterrupted([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return ErrnoStatus("list", path);
    DIR* directory = fdopendir(fd);
    if (directory == nullptr) {
      close(fd);
      return ErrnoStatus("list", path);
    }
    std::vector<std::string> names;
    errno = 0;  // readdir returns null at the end and for an error; only errno distinguishes them
    while (const dirent* entry = readdir(directory)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    const absl::Status status = errno == 0 ? absl::OkStatus() : ErrnoStatus("list", path);
    closedir(directory);
    if (!status.ok()) return status;
    std::sort(names.begin(), names.end());
    return names;
  }

  // A name of which nothing is known counts as taken: the next operation on it returns the error.
  bool Exists(const std::string& path) override { return IsThere(path).value_or(true); }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix files;  // stateless
  return files;
}

}  // namespace fsdp
