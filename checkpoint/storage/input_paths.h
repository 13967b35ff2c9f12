// SPDX-License-Identifier: Apache-2.0
//
// InputPaths: everything that a program reads, so that no output of it is one of these files or lies in one of these
// directories. Files are known by device and inode: another spelling, a link or a hard link is the same file. The
// question is asked through CheckOutput (checkpoint/formats/output_path.h), which knows checkpoints too.
#ifndef FSDP_CHECKPOINT_STORAGE_INPUT_PATHS_H_
#define FSDP_CHECKPOINT_STORAGE_INPUT_PATHS_H_

#include <map>
#include <optional>
#include <string>

#include "fsdp/checkpoint/storage/file_identity.h"

namespace fsdp {

class InputPaths {
 public:
  // A file, or a directory with everything that is in it: a file that a member is a link to is read too. Adds nothing
  // where there is nothing: the error of that is the reader's.
  void Add(const std::string& path);

  // The path, as it was added or found, of the file or directory that `path` leads to, if that is read.
  std::optional<std::string> Find(const std::string& path) const;

  // The path of something that is read and that lies, at any depth, in the directory that `path` leads to.
  std::optional<std::string> FindInside(const std::string& path) const;

 private:
  void AddOne(const std::string& path);

  std::map<FileIdentity, std::string> read_;
  std::map<FileIdentity, std::string> around_;  // the directories above, each with something in it that is read
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_INPUT_PATHS_H_
