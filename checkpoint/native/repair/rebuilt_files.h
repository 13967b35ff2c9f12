// SPDX-License-Identifier: Apache-2.0
//
// RebuiltFiles: rebuilt files of a checkpoint, which stay in its hidden directory .repair-<nonce> until all are
// verified. Install then renames each to its place. Not thread-safe.
#ifndef FSDP_CHECKPOINT_NATIVE_REPAIR_REBUILT_FILES_H_
#define FSDP_CHECKPOINT_NATIVE_REPAIR_REBUILT_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/native/tree/tree_file.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// True for ".repair-<nonce>". A repair that holds the checkpoint's lock finds such a directory only after a crash.
bool IsRebuiltDirectoryName(const std::string& name);

class RebuiltFiles {
 public:
  // For the checkpoint directory `checkpoint`. Nothing is written until the first file is added.
  RebuiltFiles(FileSystem& files, std::string checkpoint);

  // Removes the hidden directory with all files that were not installed.
  ~RebuiltFiles();
  RebuiltFiles(const RebuiltFiles&) = delete;
  RebuiltFiles& operator=(const RebuiltFiles&) = delete;

  // The hidden directory.
  const std::string& path() const { return path_; }

  // Returns the path at which the caller writes and fsyncs the file `name`. Install keeps the order of these calls.
  absl::StatusOr<std::string> Add(const std::string& name);

  // Undoes Add and deletes the file.
  absl::Status Drop(const std::string& name);

  // The directory that now holds the file `name`: path() if it was rebuilt, else the checkpoint.
  const std::string& DirectoryOf(const std::string& name) const;

  // Writes checkpoint.h5 from the records of all rank files, by writer. Returns the manifest, without parity.
  absl::StatusOr<Manifest> WriteIndex(const std::vector<FileRecord>& records, ThreadPool& pool);

  // Writes `count` parity files over the rank files of `manifest` and adds them to it. Replaces rebuilt ones.
  absl::Status WriteParity(int count, Manifest& manifest, ThreadPool& pool);

  // Writes and fsyncs manifest.json.
  absl::Status WriteManifest(const Manifest& manifest);

  // Renames every file to its place, each durable before the next. A directory that has the name of a file is renamed
  // to DisplacedName with all its contents, which are not ours to delete.
  absl::Status Install();

  // ".NAME.aside-<nonce>": hidden, so that it is not mistaken for a part of the checkpoint.
  std::string DisplacedName(const std::string& name) const;

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

#endif  // FSDP_CHECKPOINT_NATIVE_REPAIR_REBUILT_FILES_H_
