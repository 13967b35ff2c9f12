// SPDX-License-Identifier: Apache-2.0
//
// InputPaths: the files and directories that a program reads, so that none of its outputs is one of them or inside one
// of them. Files are identified by device and inode: another spelling, a link or a hard link is the same file. Programs
// use it through CheckOutput (checkpoint/formats/output_path.h), which also knows checkpoints.
#ifndef FSDP_CHECKPOINT_STORAGE_INPUT_PATHS_H_
#define FSDP_CHECKPOINT_STORAGE_INPUT_PATHS_H_

#include <map>
#include <optional>
#include <string>

#include "fsdp/checkpoint/storage/file_identity.h"

namespace fsdp {

class InputPaths {
 public:
  // Adds a file, or a directory with all its entries; the target of an entry that is a link is added too. Adds nothing
  // if `path` does not exist: the reader reports that.
  void Add(const std::string& path);

  // If `path` leads to a file or directory that is read: its path as it was added or found.
  std::optional<std::string> Find(const std::string& path) const;

  // The path of an input that is, at any depth, inside the directory that `path` leads to.
  std::optional<std::string> FindInside(const std::string& path) const;

 private:
  void AddOne(const std::string& path);

  std::map<FileIdentity, std::string> read_;
  std::map<FileIdentity, std::string> around_;  // the directories above, each with an input inside it
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_INPUT_PATHS_H_
