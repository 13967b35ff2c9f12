// SPDX-License-Identifier: Apache-2.0
//
// StagedCheckpoint: a checkpoint directory that appears under its name whole or not at all. Only rank 0's process
// drives it; the steps refer to the commit protocol at the top of staged_checkpoint.cc.
//
//   FSDP_ASSIGN_OR_RETURN(std::unique_ptr<StagedCheckpoint> staged, StagedCheckpoint::Create(files, root, name, {}));
//   ... write and sync files in staged->path() ...
//   FSDP_RETURN_IF_ERROR(staged->Commit(EncodeManifest(manifest)));
//
// Not thread-safe.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_STAGED_CHECKPOINT_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_STAGED_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct StagedCheckpointOptions {
  bool overwrite = false;  // replace a checkpoint of this name by exchange; otherwise kAlreadyExists

  // True to remove leftovers of a crashed save of checkpoint `name` too. Empty: only of this checkpoint.
  std::function<bool(const std::string& name)> is_cleaned = {};

  // Called with a sentence about each leftover that was removed, with its name, size and age, and about each that was
  // kept, since it is not proven to be ours. May be empty.
  std::function<void(const std::string& sentence)> on_leftover = {};
};

class StagedCheckpoint final {
 public:
  // Steps 1 to 3: removes leftovers and makes the hidden directory. kAlreadyExists as above; kUnimplemented when a
  // checkpoint is to be replaced and the file system cannot exchange two names; kUnavailable while another process
  // repairs, overwrites or deletes it. `directory` exists.
  static absl::StatusOr<std::unique_ptr<StagedCheckpoint>> Create(FileSystem& files, const std::string& directory,
                                                                  const std::string& name,
                                                                  const StagedCheckpointOptions& options);

  // Removes the hidden directory unless it was committed.
  ~StagedCheckpoint();
  StagedCheckpoint(const StagedCheckpoint&) = delete;
  StagedCheckpoint& operator=(const StagedCheckpoint&) = delete;

  // The hidden directory, for the files of the checkpoint, and its path after the commit.
  const std::string& path() const { return path_; }
  const std::string& destination() const { return destination_; }

  // Steps 4 to 7; `manifest` is the text of manifest.json, and must pass CheckManifestSize. All other files in path()
  // must have been synced. Called once. After an error the checkpoint may or may not have its name, as after a crash.
  absl::Status Commit(const std::string& manifest);

 private:
  StagedCheckpoint(FileSystem& files, std::string directory, std::string name, bool overwrite);

  absl::Status MakeDirectory();
  absl::Status CheckCanExchange();
  absl::Status TakeName();

  FileSystem& files_;
  const std::string directory_;
  const std::string name_;
  const std::string destination_;
  const bool overwrite_;
  std::string path_;
  DirectoryLock replaced_;          // of the checkpoint that is overwritten
  std::unique_ptr<File> manifest_;  // locked from step 3 to the commit; null without a directory to remove
};

// kResourceExhausted, with size and limit, for a manifest of checkpoint `path` that no reader would read: a save that
// succeeds can be loaded.
absl::Status CheckManifestSize(const std::string& path, int64_t nbytes);

// Deletes the checkpoint directory/name so that its name never refers to a partial checkpoint: renames it to a hidden
// name, makes that durable, then unlinks the files. OK if another process has deleted it meanwhile. kFailedPrecondition
// when it is not proven to be a checkpoint of this project (checkpoint_proof.h); kUnavailable while another process
// repairs, overwrites or deletes it.
absl::Status DeleteCheckpointDirectory(FileSystem& files, const std::string& directory, const std::string& name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_STAGED_CHECKPOINT_H_
