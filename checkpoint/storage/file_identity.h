// SPDX-License-Identifier: Apache-2.0
//
// FileIdentity: identifies the file that a path leads to, regardless of its spelling: two paths through links, "..",
// mounts or hard links lead to the same file if device and inode are equal.
#ifndef FSDP_CHECKPOINT_STORAGE_FILE_IDENTITY_H_
#define FSDP_CHECKPOINT_STORAGE_FILE_IDENTITY_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;

  friend auto operator<=>(const FileIdentity&, const FileIdentity&) = default;
};

// The identity of the file or directory that `path` leads to, through links; nothing if it does not exist.
std::optional<FileIdentity> IdentityOf(const std::string& path);

// `path`, absolute and without links, "." and "..". A part that does not exist is kept as it is spelled, since a
// program that creates it would create it there.
std::string PhysicalPath(const std::string& path);

// The directories above PhysicalPath(path), from its own to "/", existing or not.
std::vector<std::string> PhysicalParents(const std::string& path);

// `path` and, if it is a symbolic link, every path on the way to its final target: writing to one of them may change
// any of them.
std::vector<std::string> LinkChain(const std::string& path);

// Bytes of the files in `paths`, which are files and directories, that lose their last name when all of these are
// deleted: a file with another name, a link, or a directory counts as 0. Bytes are lengths, as `ls -l` shows them;
// entries that disappear while this runs are not counted.
int64_t FreedBytes(const std::vector<std::string>& paths);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_FILE_IDENTITY_H_
