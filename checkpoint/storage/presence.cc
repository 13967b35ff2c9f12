// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/presence.h"

#include <sys/stat.h>

#include <cerrno>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/posix_file.h"

namespace fsdp {

using std::filesystem::file_type;

namespace {

// After a call of the family of stat, which has filled `info` or failed with errno.
absl::StatusOr<file_type> TypeOf(const std::string& path, int result, const struct stat& info) {
  if (result != 0) {
    // Also a path through a file or a loop of links, and a name that no file can have.
    if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP) return file_type::not_found;
    return ErrnoStatus("stat", path);
  }
  if (S_ISREG(info.st_mode)) return file_type::regular;
  if (S_ISDIR(info.st_mode)) return file_type::directory;
  return S_ISLNK(info.st_mode) ? file_type::symlink : file_type::unknown;
}

}  // namespace

absl::StatusOr<file_type> TypeOfEntry(const std::string& path) {
  struct stat info = {};
  const int result = lstat(path.c_str(), &info);
  return TypeOf(path, result, info);
}

absl::StatusOr<file_type> TypeOfTarget(const std::string& path) {
  struct stat info = {};
  const int result = stat(path.c_str(), &info);
  return TypeOf(path, result, info);
}

absl::StatusOr<bool> IsThere(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const file_type type, TypeOfEntry(path));
  return type != file_type::not_found;
}

}  // namespace fsdp
