// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/checkpoint_manifest.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/shell_word.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

namespace {

// What to do about the lost manifest of `directory`, which holds `name`.
std::string Remedy(const std::string& directory, const std::string& name) {
  if (StagedNameOf(SplitPath(directory).name)) return "; it is a save that was never committed";
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(directory);
  if (names.ok() && std::any_of(names->begin(), names->end(), IsRankFileName)) {
    return absl::StrCat("; `ckpt repair ", ShellWord(directory), " --dry_run` says whether it can be made again");
  }
  return absl::StrCat("; without it give that file, ", ShellWord(JoinPath(directory, name)));
}

}  // namespace

absl::StatusOr<std::string> FindCheckpointFile(const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(directory);
  if (absl::IsNotFound(names.status()) || absl::IsFailedPrecondition(names.status())) return std::string();
  FSDP_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (name == kCheckpointFileName || IsRankFileName(name)) return name;
  }
  return std::string();
}

// Only the manifest says which files belong to the checkpoint and what their bytes mean.
absl::Status CheckManifestIsThere(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const bool is_there, HasEntry(directory, kManifestName));
  if (is_there) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const std::string name, FindCheckpointFile(directory));
  if (name.empty()) return absl::NotFoundError(absl::StrCat(kManifestName, " is missing in ", directory));
  return absl::DataLossError(
      absl::StrCat(kManifestName, " is missing in ", directory, ", which holds ", name, Remedy(directory, name)));
}

absl::StatusOr<Manifest> ReadCheckpointManifest(const std::string& directory) {
  FSDP_RETURN_IF_ERROR(CheckManifestIsThere(directory));
  return ReadManifest(PosixFileSystem(), directory);
}

}  // namespace fsdp
