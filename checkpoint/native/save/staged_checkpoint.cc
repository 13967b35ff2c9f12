// SPDX-License-Identifier: Apache-2.0
//
// The commit protocol of one directory, DIRECTORY/NAME:
//
//   1. Remove leftovers: a hidden sibling .X.tmp-<nonce> whose manifest.json no process holds locked was left by a
//      crash, and is removed; so is any .X.deleted-<nonce>. Both only with proof that they are ours (leftovers.h).
//   2. NAME must not exist, unless it is to be overwritten: then lock it, so that no other process repairs or deletes
//      it meanwhile.
//   3. Make .NAME.tmp-<nonce>, and in it manifest.json, empty and locked: until the manifest is written the directory
//      is not a checkpoint, and the lock, which the kernel drops when the process dies, shows that it has an owner.
//      fsync DIRECTORY. For overwriting, test now that the file system exchanges names, before anything is written.
//   4. (The caller writes and fsyncs all other files.) Write manifest.json, fsync it.
//   5. fsync .NAME.tmp-<nonce>, so that all names in it are durable.
//   6. Rename it to NAME, or exchange the two. This is the commit. fsync DIRECTORY, so that it is durable.
//   7. Delete the replaced directory: rename it to .NAME.deleted-<nonce>, fsync DIRECTORY, unlink.
//
// A crash before 6 leaves NAME as it was, and a hidden directory for the next save to remove; after 6 NAME is the new
// checkpoint. Between the rename and its fsync a power cut may leave either one, complete.
#include "fsdp/checkpoint/native/save/staged_checkpoint.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"
#include "fsdp/checkpoint/native/save/leftovers.h"
#include "fsdp/checkpoint/storage/durable_name.h"
#include "fsdp/checkpoint/storage/file_age.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

// Attempts at a name or a lock that another process may take at the same time.
constexpr int kAttempts = 10;

// Removes a directory in which other ranks may still be making files: after a failed save they are informed later.
absl::Status RemovePersistently(FileSystem& files, const std::string& path) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    status = RemoveTree(files, path);
    if (status.ok() || !files.Exists(path)) return absl::OkStatus();
  }
  return status;
}

// ".step-00000007.tmp-0123456789abcdef: 12345678 bytes, last changed 3h5m ago": a leftover in a sentence.
std::string DescribeLeftover(const std::string& name, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  uintmax_t nbytes = 0;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const uintmax_t size = it->file_size(ignored);
    if (!ignored) nbytes += size;
  }
  return absl::StrCat(name, ": ", nbytes, " bytes, last changed ", AgeText(AgeOf(path)));
}

// Step 1. A leftover that cannot be removed now is left for the next save; one that is not ours stays.
void RemoveLeftovers(FileSystem& files, const std::string& directory, const StagedCheckpointOptions& options) {
  const absl::StatusOr<std::vector<Leftover>> leftovers = FindLeftovers(files, directory);
  if (!leftovers.ok()) return;
  const auto say = [&](const std::string& sentence) {
    if (options.on_leftover) options.on_leftover(sentence);
  };
  for (const Leftover& leftover : *leftovers) {
    if (!options.is_cleaned(leftover.checkpoint)) continue;
    if (!leftover.proof.ok()) {
      say(absl::StrCat(JoinPath(directory, Printable(leftover.name)), " is left in place: ", leftover.proof.message()));
      continue;
    }
    const std::string sentence = DescribeLeftover(leftover.name, JoinPath(directory, leftover.name));
    const absl::StatusOr<bool> removed = RemoveLeftover(files, directory, leftover.name);
    if (!removed.ok() || !*removed) continue;
    say(absl::StrCat("removed what a ", leftover.is_deletion ? "deletion" : "save",
                     " left that was cut short: ", sentence));
  }
}

// Renames root/name to a hidden name, makes that durable, then unlinks the files.
absl::Status DeleteByRename(FileSystem& files, const std::string& directory, const std::string& name) {
  const std::string visible = StagedNameOf(name).value_or(name);
  const std::string away = JoinPath(directory, DeletedName(visible, NewNonce()));
  FSDP_RETURN_IF_ERROR(files.Rename(JoinPath(directory, name), away));
  FSDP_RETURN_IF_ERROR(files.SyncDirectory(directory));
  return RemovePersistently(files, away);
}

}  // namespace

StagedCheckpoint::StagedCheckpoint(FileSystem& files, std::string directory, std::string name, bool overwrite)
    : files_(files),
      directory_(std::move(directory)),
      name_(std::move(name)),
      destination_(JoinPath(directory_, name_)),
      overwrite_(overwrite) {}

absl::StatusOr<std::unique_ptr<StagedCheckpoint>> StagedCheckpoint::Create(FileSystem& files,
                                                                           const std::string& directory,
                                                                           const std::string& name,
                                                                           const StagedCheckpointOptions& options) {
  // 1.
  StagedCheckpointOptions cleaning = options;
  if (!cleaning.is_cleaned) cleaning.is_cleaned = [&](const std::string& other) { return other == name; };
  RemoveLeftovers(files, directory, cleaning);
  std::unique_ptr<StagedCheckpoint> staged(new StagedCheckpoint(files, directory, name, options.overwrite));
  // 2.
  FSDP_ASSIGN_OR_RETURN(const bool exists, IsThere(staged->destination_));
  if (exists && !options.overwrite) {
    return absl::AlreadyExistsError(absl::StrCat(staged->destination_, " exists and is not to be overwritten"));
  }
  if (exists) {
    FSDP_ASSIGN_OR_RETURN(staged->replaced_, DirectoryLock::Take(staged->destination_));
  }
  // 3.
  FSDP_RETURN_IF_ERROR(staged->MakeDirectory());
  if (exists) FSDP_RETURN_IF_ERROR(staged->CheckCanExchange());
  FSDP_RETURN_IF_ERROR(files.SyncDirectory(directory));
  return staged;
}

absl::Status StagedCheckpoint::MakeDirectory() {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string path = JoinPath(directory_, StagingName(name_, NewNonce()));
    FSDP_RETURN_IF_ERROR(Annotate(files_.MakeDirectory(path), absl::StrCat(destination_, " cannot be written")));
    absl::StatusOr<std::unique_ptr<File>> manifest = files_.OpenLocked(JoinPath(path, kManifestName));
    if (manifest.ok()) {
      path_ = path;
      manifest_ = *std::move(manifest);
      return absl::OkStatus();
    }
    status = manifest.status();
    (void)RemoveTree(files_, path);
    // Another save that is removing leftovers may have taken the directory for one before it was locked; it has passed
    // this name now, and a new name is safe.
    if (!absl::IsUnavailable(status) && !absl::IsNotFound(status)) return status;
  }
  return status;
}

absl::Status StagedCheckpoint::CheckCanExchange() {
  const std::string probe = JoinPath(path_, "exchange");
  const std::string other = JoinPath(path_, "exchange-with");
  FSDP_RETURN_IF_ERROR(files_.MakeDirectory(probe));
  FSDP_RETURN_IF_ERROR(files_.MakeDirectory(other));
  const absl::Status status = files_.Exchange(probe, other);
  FSDP_RETURN_IF_ERROR(files_.RemoveDirectory(probe));
  FSDP_RETURN_IF_ERROR(files_.RemoveDirectory(other));
  if (!absl::IsUnimplemented(status)) return status;
  return absl::UnimplementedError(absl::StrCat(
      destination_, " cannot be overwritten, since its file system cannot exchange two names; delete it first"));
}

absl::Status CheckManifestSize(const std::string& path, int64_t nbytes) {
  if (nbytes <= kMaxManifestBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(JoinPath(path, kManifestName), " would have ", nbytes,
                                                   " bytes, and none of more than ", kMaxManifestBytes,
                                                   " is read; save from fewer ranks, or in several checkpoints"));
}

absl::Status StagedCheckpoint::Commit(const std::string& manifest) {
  FSDP_RETURN_IF_ERROR(CheckManifestSize(destination_, static_cast<int64_t>(manifest.size())));
  // 4.
  FSDP_RETURN_IF_ERROR(
      manifest_->Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(manifest.data()), manifest.size())));
  FSDP_RETURN_IF_ERROR(manifest_->Sync());
  // 5.
  FSDP_RETURN_IF_ERROR(files_.SyncDirectory(path_));
  // 6. and 7.
  return TakeName();
}

absl::Status StagedCheckpoint::TakeName() {
  FSDP_ASSIGN_OR_RETURN(const bool exists, IsThere(destination_));
  if (!exists) {
    FSDP_RETURN_IF_ERROR(files_.Rename(path_, destination_));
    manifest_.reset();
    return SyncNameOf(files_, destination_);
  }
  if (!overwrite_) {
    return absl::AlreadyExistsError(absl::StrCat(
        destination_, " was made by another process during this save; does another run save in ", directory_, "?"));
  }
  FSDP_RETURN_IF_ERROR(files_.Exchange(path_, destination_));
  manifest_.reset();
  replaced_.Release();
  FSDP_RETURN_IF_ERROR(SyncNameOf(files_, destination_));
  // The new checkpoint is in place; an old one that cannot be deleted now is removed by the next save. The replaced
  // directory needs no proof: the caller requested its replacement by name.
  const absl::StatusOr<DirectoryLock> old = DirectoryLock::Take(path_);
  if (old.ok()) (void)DeleteByRename(files_, directory_, SplitPath(path_).name);
  return absl::OkStatus();
}

StagedCheckpoint::~StagedCheckpoint() {
  // The lock is held until the directory is gone.
  if (manifest_ != nullptr) (void)RemovePersistently(files_, path_);
}

absl::Status DeleteCheckpointDirectory(FileSystem& files, const std::string& directory, const std::string& name) {
  const std::string from = JoinPath(directory, name);
  const absl::StatusOr<DirectoryLock> lock = DirectoryLock::Take(from);
  if (absl::IsNotFound(lock.status())) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(lock.status());
  const absl::Status proof = ProveDeletable(PosixFileSystem(), from);
  if (absl::IsFailedPrecondition(proof)) {
    return absl::FailedPreconditionError(absl::StrCat(from, " is not deleted: ", proof.message()));
  }
  FSDP_RETURN_IF_ERROR(proof);
  return DeleteByRename(files, directory, name);
}

}  // namespace fsdp
