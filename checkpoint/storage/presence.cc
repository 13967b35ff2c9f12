// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/presence.h"

#include <sys/stat.h>

#include <cerrno>

#include "fsdp/checkpoint/storage/posix_file.h"

namespace fsdp {

absl::StatusOr<bool> IsThere(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) return true;
  // Also a path through a file or a loop of links, and a name that no file can have.
  if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP) return false;
  return ErrnoStatus("stat", path);
}

}  // namespace fsdp
