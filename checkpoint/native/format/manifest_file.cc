// SPDX-License-Identifier: Apache-2.0
//
// Messages name files relative to the checkpoint: its path is known to the caller, who puts it in front once, and a
// path in the middle of a message would be long. Errors of the file system contain full paths, which are shortened
// here.
#include "fsdp/checkpoint/native/format/manifest_file.h"

#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

// The text is read into memory as a whole, up to kMaxManifestBytes, since its seal covers all of it.
absl::StatusOr<Manifest> ReadManifest(FileSystem& files, const std::string& directory) {
  const std::string path = JoinPath(directory, kManifestName);
  const absl::StatusOr<std::string> text = ReadFile(files, path, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(directory, " is not a checkpoint: it has no ", kManifestName));
  }
  // A directory, a FIFO or a file beyond kMaxManifestBytes in its place counts as a damaged manifest.
  if (absl::IsInvalidArgument(text.status())) return absl::DataLossError(text.status().message());
  FSDP_RETURN_IF_ERROR(text.status());
  absl::StatusOr<Manifest> manifest = DecodeManifest(*text);
  if (manifest.ok()) return manifest;
  const absl::Status is_downloaded = CheckIsDownloaded(path, {*text, static_cast<int64_t>(text->size())});
  if (!is_downloaded.ok()) return absl::DataLossError(is_downloaded.message());
  return Annotate(manifest.status(), path);
}

absl::StatusOr<std::unique_ptr<File>> OpenCheckpointFile(FileSystem& files, const std::string& directory,
                                                         const std::string& name) {
  const std::string path = JoinPath(directory, name);
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(path);
  if (file.ok()) return file;
  std::string what = absl::StrReplaceAll(file.status().message(), {{path, name}});
  if (!absl::StartsWith(what, name)) what = absl::StrCat(name, ": ", what);
  return absl::IsInvalidArgument(file.status()) ? absl::DataLossError(what) : absl::Status(file.status().code(), what);
}

// A file of another size is refused here, so callers never read past its end.
absl::StatusOr<std::unique_ptr<File>> OpenStoredFile(FileSystem& files, const std::string& directory,
                                                     const Manifest& manifest, int index) {
  const StoredFile& stored = manifest.files[index];
  absl::StatusOr<std::unique_ptr<File>> file = OpenCheckpointFile(files, directory, stored.name);
  if (absl::IsNotFound(file.status())) return absl::DataLossError(absl::StrCat(stored.name, ": the file is missing"));
  FSDP_RETURN_IF_ERROR(file.status());
  FSDP_ASSIGN_OR_RETURN(const int64_t size, (*file)->Size());
  if (size != stored.nbytes) {
    const absl::Status is_downloaded = CheckIsDownloaded(**file);
    if (!is_downloaded.ok()) {
      return absl::DataLossError(
          absl::StrReplaceAll(is_downloaded.message(), {{JoinPath(directory, stored.name), stored.name}}));
    }
    return absl::DataLossError(absl::StrCat(stored.name, ": the file has ", size, " bytes, expected ", stored.nbytes));
  }
  return file;
}

absl::Status CheckFilesPresent(FileSystem& files, const std::string& directory, const Manifest& manifest) {
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    FSDP_RETURN_IF_ERROR(OpenStoredFile(files, directory, manifest, static_cast<int>(i)).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FindUnknownFiles(FileSystem& files, const std::string& directory,
                                                          const Manifest& manifest) {
  std::set<std::string> known = {kManifestName};
  for (const StoredFile& file : manifest.files) known.insert(file.name);
  FSDP_ASSIGN_OR_RETURN(std::vector<std::string> names, files.List(directory));
  names.erase(
      std::remove_if(names.begin(), names.end(),
                     [&](const std::string& name) { return known.count(name) != 0 || absl::StartsWith(name, "."); }),
      names.end());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace fsdp
