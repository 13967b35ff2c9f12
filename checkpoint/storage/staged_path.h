// SPDX-License-Identifier: Apache-2.0
//
// StagedPath: a file or directory NAME that appears whole or not at all. It is written as the hidden sibling .NAME.new
// and takes its name by one rename. The writing process holds the lock of .NAME.lock until it is done, so a .NAME.new
// next to an unlocked .NAME.lock was left by a crash, and is removed. Checkpoints of ours are committed by a manifest
// instead: see staged_checkpoint.h. Not thread-safe.
//
//   lock .NAME.lock -> write .NAME.new -> sync -> rename to NAME (or exchange with NAME) -> sync directory -> unlock
//
//   FSDP_ASSIGN_OR_RETURN(auto staged, StagedPath::CreateFile(files, "model.safetensors", {.overwrite = true}));
//   ... write and sync staged->file() ...
//   FSDP_RETURN_IF_ERROR(staged->Commit());
#ifndef FSDP_CHECKPOINT_STORAGE_STAGED_PATH_H_
#define FSDP_CHECKPOINT_STORAGE_STAGED_PATH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct StagedPathOptions {
  bool overwrite = false;  // replace an existing entry; otherwise kAlreadyExists
};

class StagedPath final {
 public:
  // kAlreadyExists when `destination` exists and options.overwrite is false, or .NAME.new without .NAME.lock does;
  // kNotFound when its directory does not exist; kUnavailable when another process is writing it; kUnimplemented when
  // it is to be replaced and the file system cannot exchange two names.
  static absl::StatusOr<std::unique_ptr<StagedPath>> CreateFile(FileSystem& files, const std::string& destination,
                                                                const StagedPathOptions& options);
  static absl::StatusOr<std::unique_ptr<StagedPath>> CreateDirectory(FileSystem& files, const std::string& destination,
                                                                     const StagedPathOptions& options);

  // The hidden paths that are made and removed while `destination` is written.
  static std::vector<std::string> HiddenSiblings(const std::string& destination);

  // Removes the staged file or directory unless it was committed, or the replaced entry if it was.
  ~StagedPath();
  StagedPath(const StagedPath&) = delete;
  StagedPath& operator=(const StagedPath&) = delete;

  // The path to write to.
  const std::string& path() const { return path_; }
  File& file() { return *file_; }  // of CreateFile: open and empty

  // Gives the staged file or directory its name, durably. Call it once. All files must have been synced before; the
  // directory itself is synced here. An error says so if the destination is complete nevertheless.
  absl::Status Commit();

 private:
  enum class Kind : uint8_t { kFile, kDirectory };

  StagedPath(FileSystem& files, std::string directory, const std::string& name, const StagedPathOptions& options);

  static absl::StatusOr<std::unique_ptr<StagedPath>> Create(FileSystem& files, const std::string& destination,
                                                            const StagedPathOptions& options, Kind kind);
  absl::Status Lock();
  absl::Status Make(Kind kind);

  // Exchanges two empty directories, so that a file system that cannot is found before any byte is written.
  absl::Status CheckCanExchange();

  FileSystem& files_;
  const std::string directory_;
  const std::string destination_;
  const std::string path_;
  const std::string probe_path_;
  const std::string lock_path_;
  const StagedPathOptions options_;
  std::unique_ptr<File> lock_;  // held until the destructor; null when Lock has failed
  std::unique_ptr<File> file_;  // null for a directory
  bool made_ = false;           // path_ exists, and the destructor removes it
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_STAGED_PATH_H_
