// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/set_aside.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {

namespace {

// Bytes of the files in `directory`; a file that disappears while this runs is not counted.
int64_t BytesIn(const std::string& directory) {
  namespace fs = std::filesystem;
  int64_t nbytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const uintmax_t size = it->file_size(ignored);
    if (!ignored) nbytes += static_cast<int64_t>(size);
  }
  return nbytes;
}

}  // namespace

absl::StatusOr<SetAsideStep> SetAsideCheckpoint(FileSystem& files, const std::string& root, const std::string& name) {
  const std::string from = JoinPath(root, name);
  FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(from));
  if (!is_there) return absl::NotFoundError(absl::StrCat(from, " does not exist"));
  // Not CheckIsOurCheckpoint: a step whose manifest and records are all damaged may be renamed too, since nothing is
  // lost.
  const absl::Status proof = ProveLeftover(files, from);
  if (absl::IsFailedPrecondition(proof)) {
    return absl::FailedPreconditionError(absl::StrCat(from, " is not a checkpoint of this project: ", proof.message()));
  }
  FSDP_RETURN_IF_ERROR(proof);
  // A repair in progress installs files by path, so the directory must not be renamed meanwhile.
  FSDP_ASSIGN_OR_RETURN(const DirectoryLock lock, DirectoryLock::Take(from));
  // Rename refuses an existing name, so two processes never choose the same one.
  for (int count = 1;; ++count) {
    const std::string aside = SetAsideName(name, count);
    const absl::Status renamed = files.Rename(from, JoinPath(root, aside));
    if (absl::IsAlreadyExists(renamed)) continue;
    FSDP_RETURN_IF_ERROR(renamed);
    FSDP_RETURN_IF_ERROR(files.SyncDirectory(root));
    return SetAsideStep{aside, BytesIn(JoinPath(root, aside))};
  }
}

absl::StatusOr<std::vector<SetAsideStep>> ListSetAside(const std::string& root) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(root);
  if (absl::IsNotFound(names.status())) return std::vector<SetAsideStep>();
  FSDP_RETURN_IF_ERROR(names.status());
  std::vector<SetAsideStep> steps;
  for (const std::string& name : *names) {
    if (IsSetAsideName(name)) steps.push_back({name, BytesIn(JoinPath(root, name))});
  }
  return steps;
}

}  // namespace fsdp
