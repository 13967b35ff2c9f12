// SPDX-License-Identifier: Apache-2.0
//
// ReadManifest: the manifest of a checkpoint directory, and checks of the files that it names.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_MANIFEST_FILE_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_MANIFEST_FILE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// kNotFound when `directory` is not a directory or has no manifest; kDataLoss, naming manifest.json, when the manifest
// is damaged or not a file; kUnimplemented when a later release wrote it.
absl::StatusOr<Manifest> ReadManifest(FileSystem& files, const std::string& directory);

// OK when every file that `manifest` names is in `directory` with its size; no contents are read. kDataLoss names the
// first that is not.
absl::Status CheckFilesPresent(FileSystem& files, const std::string& directory, const Manifest& manifest);

// The names in `directory` that `manifest` does not name, sorted. Hidden names are left out: file systems and desktops
// create them.
absl::StatusOr<std::vector<std::string>> FindUnknownFiles(FileSystem& files, const std::string& directory,
                                                          const Manifest& manifest);

// Opens `directory`/`name`, a file of a checkpoint. kNotFound if it does not exist; kDataLoss if it is not a file but,
// for example, a directory or a FIFO. Names the file, not its directory.
absl::StatusOr<std::unique_ptr<File>> OpenCheckpointFile(FileSystem& files, const std::string& directory,
                                                         const std::string& name);

// Opens files[index] and checks its size. kDataLoss when it is missing, is not a file, or has another size. Names the
// file, not its directory.
absl::StatusOr<std::unique_ptr<File>> OpenStoredFile(FileSystem& files, const std::string& directory,
                                                     const Manifest& manifest, int index);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_MANIFEST_FILE_H_
