// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/staged_path.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

absl::Status Errno(const char* operation, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(operation, " ", path));
}

// True when something, even a dangling link, has this name.
bool Exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

bool IsDirectory(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// The directory of `path` and the name in it.
std::pair<fs::path, std::string> Split(const std::string& path) {
  fs::path whole(path);
  if (!whole.has_filename()) whole = whole.parent_path();  // a trailing slash
  fs::path parent = whole.parent_path();
  return {parent.empty() ? fs::path(".") : parent, whole.filename()};
}

void RemoveTree(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// The descriptor of `path`, locked; -1 when another process holds the lock or has removed the path meanwhile.
int OpenLocked(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && Exists(path)) return fd;
  close(fd);
  return -1;
}

// Removes siblings of this name that no live process holds.
void Sweep(const fs::path& parent, const std::string& prefix) {
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (!absl::StartsWith(name, prefix)) continue;
    const int fd = OpenLocked(it->path());
    if (fd < 0) continue;
    RemoveTree(it->path());
    close(fd);
  }
}

std::string Nonce() {
  std::random_device random;
  return absl::StrCat(absl::Hex((uint64_t{random()} << 32) | random(), absl::kZeroPad16));
}

absl::Status MakeEmpty(const std::string& path, const StagedPathOptions& options) {
  if (options.directory) {
    return mkdir(path.c_str(), 0777) == 0 ? absl::OkStatus() : Errno("mkdir", path);
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return Errno("create", path);
  close(fd);
  return absl::OkStatus();
}

bool Exchange(const std::string& a, const std::string& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

// Tries an exchange of two names beside `path`, before a byte is written for nothing.
absl::Status CheckCanExchange(const std::string& path) {
  const std::string other = path + ".probe";
  if (mkdir(other.c_str(), 0777) != 0) return Errno("mkdir", other);
  const bool works = Exchange(path, other);
  rmdir(other.c_str());
  if (works) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "the file system of ", path, " cannot exchange two names, so a directory cannot be replaced; remove it first"));
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Errno("open", path);
  const int result = fsync(fd);
  const absl::Status status = result == 0 ? absl::OkStatus() : Errno("fsync", path);
  close(fd);
  return status;
}

// Renames unless `to` exists.
absl::Status RenameNew(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return absl::OkStatus();
  if (errno == EEXIST) return absl::AlreadyExistsError(absl::StrCat(to, " exists"));
  if (errno != EINVAL && errno != ENOSYS) return Errno("rename to", to);
  if (Exists(to)) return absl::AlreadyExistsError(absl::StrCat(to, " exists"));  // a file system without the flag
  return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : Errno("rename to", to);
}

}  // namespace

absl::StatusOr<StagedPath> StagedPath::Create(const std::string& destination, const StagedPathOptions& options) {
  const auto [parent, name] = Split(destination);
  if (name.empty() || name == "." || name == "..") {
    return absl::InvalidArgumentError(absl::StrCat("\"", destination, "\" is no name for a new file or directory"));
  }
  std::error_code ignored;
  if (!fs::is_directory(parent, ignored)) {
    return absl::NotFoundError(absl::StrCat("directory ", parent.string(), " does not exist; make it first"));
  }
  const std::string target = parent / name;
  if (!options.overwrite && Exists(target)) return absl::AlreadyExistsError(absl::StrCat(destination, " exists"));
  const std::string prefix = absl::StrCat(".", name, ".tmp-");
  Sweep(parent, prefix);
  const std::string path = parent / absl::StrCat(prefix, Nonce());
  RETURN_IF_ERROR(MakeEmpty(path, options));
  StagedPath staged(target, path, OpenLocked(path), options);
  if (staged.lock_ < 0) return absl::UnavailableError(absl::StrCat("cannot lock ", path));
  if (IsDirectory(target) && options.directory) {
    RETURN_IF_ERROR(CheckCanExchange(path));
  }
  return staged;
}

StagedPath::StagedPath(StagedPath&& other) noexcept
    : destination_(std::move(other.destination_)),
      path_(std::move(other.path_)),
      lock_(std::exchange(other.lock_, -1)),
      options_(other.options_) {}

StagedPath::~StagedPath() {
  if (lock_ < 0) return;
  RemoveTree(path_);
  close(lock_);
}

absl::Status StagedPath::Commit() {
  if (options_.directory) {
    RETURN_IF_ERROR(SyncDirectory(path_));
  }
  const std::string parent = fs::path(destination_).parent_path();
  if (!options_.overwrite || !Exists(destination_)) {
    RETURN_IF_ERROR(RenameNew(path_, destination_));
    close(std::exchange(lock_, -1));
    return SyncDirectory(parent);
  }
  if (!options_.directory && !IsDirectory(destination_)) {
    if (rename(path_.c_str(), destination_.c_str()) != 0) return Errno("rename to", destination_);
    close(std::exchange(lock_, -1));
    return SyncDirectory(parent);
  }
  if (!Exchange(path_, destination_)) return Errno("exchange", destination_);
  RETURN_IF_ERROR(SyncDirectory(parent));
  RemoveTree(path_);  // what had the name before
  close(std::exchange(lock_, -1));
  return absl::OkStatus();
}

}  // namespace fsdp
