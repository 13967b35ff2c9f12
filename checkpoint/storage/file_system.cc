// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/file_system.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

absl::Status MakeDirectories(FileSystem& files, const std::string& path) {
  if (files.Exists(path)) return absl::OkStatus();
  const PathParts parts = SplitPath(path);
  if (parts.name.empty()) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(MakeDirectories(files, parts.directory));
  // kAlreadyExists: another process has made the same directory in between.
  const absl::Status made = files.MakeDirectory(path);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  return files.SyncDirectory(parts.directory);
}

absl::Status RemoveTree(FileSystem& files, const std::string& path) {
  // Unlink removes files and symbolic links and fails for directories, so a link to a directory is never followed.
  const absl::Status unlinked = files.Unlink(path);
  if (unlinked.ok()) return absl::OkStatus();  // a file or a link
  const absl::StatusOr<std::vector<std::string>> names = files.List(path);
  if (!names.ok()) return unlinked;
  for (const std::string& name : *names) {
    FSDP_RETURN_IF_ERROR(RemoveTree(files, JoinPath(path, name)));
  }
  return files.RemoveDirectory(path);
}

absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path, int64_t max_bytes) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(path));
  FSDP_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", size, " bytes, more than ", max_bytes));
  }
  // Bounded by max_bytes before the allocation, since the file may be hostile.
  std::string bytes(size, '\0');
  FSDP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  return bytes;
}

}  // namespace fsdp
