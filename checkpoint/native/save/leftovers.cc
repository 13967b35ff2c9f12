// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/save/leftovers.h"

#include <memory>
#include <optional>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

absl::StatusOr<std::vector<Leftover>> FindLeftovers(FileSystem& files, const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  std::vector<Leftover> leftovers;
  for (const std::string& name : names) {
    const std::optional<std::string> deleted = DeletedNameOf(name);
    const std::optional<std::string> staged = StagedNameOf(name);
    if (!deleted && !staged) continue;
    // The proof is made for every candidate, so that callers can report unproven ones with the reason.
    leftovers.push_back({.name = name,
                         .checkpoint = deleted ? *deleted : *staged,
                         .is_deletion = deleted.has_value(),
                         .proof = ProveLeftover(files, JoinPath(directory, name))});
  }
  return leftovers;
}

// The proof comes before the lock, which creates a file in the directory. It is repeated here, since the contents may
// have changed since FindLeftovers.
absl::StatusOr<bool> RemoveLeftover(FileSystem& files, const std::string& directory, const std::string& name) {
  const std::string path = JoinPath(directory, name);
  if (!ProveLeftover(PosixFileSystem(), path).ok()) return false;
  std::unique_ptr<File> lock;
  if (!DeletedNameOf(name)) {
    absl::StatusOr<std::unique_ptr<File>> opened = files.OpenLocked(JoinPath(path, kManifestName));
    if (absl::IsNotFound(opened.status()) || absl::IsUnavailable(opened.status())) return false;
    FSDP_RETURN_IF_ERROR(opened.status());
    lock = *std::move(opened);
    if (!lock->locked()) return false;  // without locks a running save cannot be ruled out
  }
  FSDP_RETURN_IF_ERROR(RemoveTree(files, path));
  return true;
}

}  // namespace fsdp
