// SPDX-License-Identifier: Apache-2.0
//
// FileIdentity: which file a path leads to, whatever its spelling: two paths through links, "..", mounts or hard links
// lead to one file when its device and inode are equal.
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

// Of the file or directory that `path` leads to, through links; nothing when it leads to none.
std::optional<FileIdentity> IdentityOf(const std::string& path);

// `path`, absolute and without links, "." and "..". The part of it that does not exist is kept as it is spelled, which
// is where a program that makes it would make it.
std::string PhysicalPath(const std::string& path);

// The directories that hold `path`, from its own to "/": those of PhysicalPath(path), existing or not.
std::vector<std::string> PhysicalParents(const std::string& path);

// `path`, and, where it is a symbolic link, every path that it leads over to what it denotes: writing to one of them
// may change any of them.
std::vector<std::string> LinkChain(const std::string& path);

// Bytes of the files in `paths`, which are files and directories, that lose their last name when all of these are
// deleted: a file that another name keeps, a link, or a directory counts nothing. Bytes are lengths, as `ls -l` shows
// them; what disappears while this runs is not counted.
int64_t FreedBytes(const std::vector<std::string>& paths);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_FILE_IDENTITY_H_
