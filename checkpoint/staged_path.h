// SPDX-License-Identifier: Apache-2.0
//
// StagedPath: a file or directory that appears under its name whole or not at all. It is made as a hidden sibling,
// `.NAME.tmp-<nonce>`, and takes its name by one rename. A lock held on the sibling tells it from what a crash left
// behind, which the next StagedPath for the same name sweeps. Not thread-safe.
//
//   ASSIGN_OR_RETURN(StagedPath staged, StagedPath::Create("model.safetensors", {.overwrite = true}));
//   ... write and fsync staged.path() ...
//   RETURN_IF_ERROR(staged.Commit());
#ifndef FSDP_CHECKPOINT_STAGED_PATH_H_
#define FSDP_CHECKPOINT_STAGED_PATH_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

struct StagedPathOptions {
  bool directory = false;  // make a directory instead of an empty file
  bool overwrite = false;  // replace what has the name; otherwise kAlreadyExists
};

class StagedPath {
 public:
  // kAlreadyExists when `destination` exists and may not be replaced; kNotFound when its parent directory does not
  // exist; kUnimplemented when a directory is to be replaced on a file system that cannot exchange two names.
  static absl::StatusOr<StagedPath> Create(const std::string& destination, const StagedPathOptions& options);

  // Removes what was not committed.
  ~StagedPath();
  StagedPath(StagedPath&& other) noexcept;
  StagedPath& operator=(StagedPath&&) = delete;

  // Where to write.
  const std::string& path() const { return path_; }

  // Gives it its name, durably, and deletes what had it before. What was written must have been fsynced; the directory
  // of a staged directory is fsynced here.
  absl::Status Commit();

 private:
  StagedPath(std::string destination, std::string path, int lock, const StagedPathOptions& options)
      : destination_(std::move(destination)), path_(std::move(path)), lock_(lock), options_(options) {}

  std::string destination_;
  std::string path_;
  int lock_;  // an open file descriptor of path_, locked; -1 after a move or Commit
  StagedPathOptions options_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STAGED_PATH_H_
