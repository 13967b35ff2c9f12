// SPDX-License-Identifier: Apache-2.0
//
// RebuiltFiles: files of a checkpoint that were made again and wait, in a hidden directory inside of it, until all are
// right; then they take their places, one rename each. Not thread-safe.
#ifndef FSDP_CHECKPOINT_REPAIR_REBUILT_FILES_H_
#define FSDP_CHECKPOINT_REPAIR_REBUILT_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/tree/tree_file.h"

namespace fsdp {

// ".repair-<nonce>": where a repair keeps them; one that is found was left by a crash.
bool IsRebuiltDirectoryName(const std::string& name);

class RebuiltFiles {
 public:
  // For the checkpoint directory `checkpoint`. Nothing is made until a file is added.
  RebuiltFiles(FileSystem& files, std::string checkpoint);

  // Removes what has not taken its place.
  ~RebuiltFiles();
  RebuiltFiles(const RebuiltFiles&) = delete;
  RebuiltFiles& operator=(const RebuiltFiles&) = delete;

  // Where the files are.
  const std::string& path() const { return path_; }

  // The path at which the caller makes and syncs the file `name`. Files take their places in the order of these calls.
  absl::StatusOr<std::string> Add(const std::string& name);

  // Takes `name` back.
  absl::Status Drop(const std::string& name);

  // Where the file `name` now is: here, or in the checkpoint as it was.
  const std::string& DirectoryOf(const std::string& name) const;

  // checkpoint.h5 from the records of all rank files, the first writer's first; returns the manifest, without parity.
  absl::StatusOr<Manifest> WriteIndex(const std::vector<FileRecord>& records, ThreadPool& pool);

  // `count` parity files over the rank files of `manifest`, which gets them; in place of any that were made before.
  absl::Status WriteParity(int count, Manifest& manifest, ThreadPool& pool);

  absl::Status WriteManifest(const Manifest& manifest);

  // Every file takes its place. A directory that has it is renamed to AsideName, with all that is in it.
  absl::Status Install();

  // ".NAME.aside-<nonce>": hidden, so nobody takes it for a part of the checkpoint.
  std::string AsideName(const std::string& name) const;

 private:
  absl::StatusOr<std::vector<TreeFile::Text>> TextsOf(const FileRecord& record);

  FileSystem& files_;
  const std::string checkpoint_;
  const std::string nonce_;
  const std::string path_;
  bool is_made_ = false;
  std::vector<std::string> names_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_REPAIR_REBUILT_FILES_H_
