// SPDX-License-Identifier: Apache-2.0
//
// StagedPath: a file or directory NAME that appears whole or not at all. It is made as the hidden sibling .NAME.new and
// takes its name by one rename. Whoever makes NAME holds the lock of .NAME.lock meanwhile, so a .NAME.new that is found
// under the lock was left by a crash, and is removed. For checkpoints of ours, which a manifest commits, see
// staged_checkpoint.h. Not thread-safe.
//
//   FSDP_ASSIGN_OR_RETURN(auto staged, StagedPath::CreateFile(files, "model.safetensors", {.overwrite = true}));
//   ... write and sync staged->file() ...
//   FSDP_RETURN_IF_ERROR(staged->Commit());
#ifndef FSDP_CHECKPOINT_STORAGE_STAGED_PATH_H_
#define FSDP_CHECKPOINT_STORAGE_STAGED_PATH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct StagedPathOptions {
  bool overwrite = false;  // replace what has the name; otherwise kAlreadyExists
};

class StagedPath final {
 public:
  // kAlreadyExists when `destination` exists and may not be replaced; kNotFound when its directory does not exist;
  // kUnavailable when another process makes it; kUnimplemented when it is to be replaced where the file system cannot
  // exchange two names.
  static absl::StatusOr<std::unique_ptr<StagedPath>> CreateFile(FileSystem& files, const std::string& destination,
                                                                const StagedPathOptions& options);
  static absl::StatusOr<std::unique_ptr<StagedPath>> CreateDirectory(FileSystem& files, const std::string& destination,
                                                                     const StagedPathOptions& options);

  // Removes what was not committed.
  ~StagedPath();
  StagedPath(const StagedPath&) = delete;
  StagedPath& operator=(const StagedPath&) = delete;

  // Where to write.
  const std::string& path() const { return path_; }
  File& file() { return *file_; }  // of CreateFile: open and empty

  // Gives it its name, durably, and deletes what had it before. What was written must have been synced; a directory
  // itself is synced here.
  absl::Status Commit();

 private:
  enum class Kind : uint8_t { kFile, kDirectory };

  StagedPath(FileSystem& files, std::string directory, const std::string& name, const StagedPathOptions& options);

  static absl::StatusOr<std::unique_ptr<StagedPath>> Create(FileSystem& files, const std::string& destination,
                                                            const StagedPathOptions& options, Kind kind);
  absl::Status Lock();
  absl::Status Make(Kind kind);

  // Exchanges two empty directories, so that it is known before anything is written for nothing.
  absl::Status CheckCanExchange();

  FileSystem& files_;
  const std::string directory_;
  const std::string destination_;
  const std::string path_;
  const std::string probe_path_;
  const std::string lock_path_;
  const StagedPathOptions options_;
  std::unique_ptr<File> lock_;  // held until the destructor, or null if it was not taken
  std::unique_ptr<File> file_;  // null for a directory
  bool made_ = false;           // path_ is there and not committed
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_STAGED_PATH_H_
