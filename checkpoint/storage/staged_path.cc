// SPDX-License-Identifier: Apache-2.0
//
// A crash or a failing disk leaves the lock file and one of three states. The next StagedPath of the same NAME takes
// the lock, which the kernel has released, and removes all leftovers:
//
//   before the rename:       .NAME.new, incomplete; NAME is as it was
//   after an exchange:       .NAME.new, the replaced contents; NAME is complete
//   during CheckCanExchange: .NAME.new and .NAME.probe, empty directories
//
// A .NAME.new without a lock file next to it is not ours, and stays.
//
// NAME is replaced by an exchange, not by a removal and a rename, since a crash between the two would leave no NAME.
#include "fsdp/checkpoint/storage/staged_path.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/durable_name.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

constexpr char kStaged[] = ".new";
constexpr char kProbe[] = ".probe";
constexpr char kLock[] = ".lock";

std::string HiddenPath(const std::string& directory, const std::string& name, const char* suffix) {
  return JoinPath(directory, absl::StrCat(".", name, suffix));
}

}  // namespace

StagedPath::StagedPath(FileSystem& files, std::string directory, const std::string& name,
                       const StagedPathOptions& options)
    : files_(files),
      directory_(std::move(directory)),
      destination_(JoinPath(directory_, name)),
      path_(HiddenPath(directory_, name, kStaged)),
      probe_path_(HiddenPath(directory_, name, kProbe)),
      lock_path_(HiddenPath(directory_, name, kLock)),
      options_(options) {}

std::vector<std::string> StagedPath::HiddenSiblings(const std::string& destination) {
  const PathParts parts = SplitPath(destination);
  std::vector<std::string> paths;
  for (const char* suffix : {kStaged, kProbe, kLock}) paths.push_back(HiddenPath(parts.directory, parts.name, suffix));
  return paths;
}

absl::StatusOr<std::unique_ptr<StagedPath>> StagedPath::CreateFile(FileSystem& files, const std::string& destination,
                                                                   const StagedPathOptions& options) {
  return Create(files, destination, options, Kind::kFile);
}

absl::StatusOr<std::unique_ptr<StagedPath>> StagedPath::CreateDirectory(FileSystem& files,
                                                                        const std::string& destination,
                                                                        const StagedPathOptions& options) {
  return Create(files, destination, options, Kind::kDirectory);
}

absl::StatusOr<std::unique_ptr<StagedPath>> StagedPath::Create(FileSystem& files, const std::string& destination,
                                                               const StagedPathOptions& options, Kind kind) {
  const PathParts parts = SplitPath(destination);
  if (parts.name.empty() || parts.name == "." || parts.name == "..") {
    return absl::InvalidArgumentError(absl::StrCat("\"", destination, "\" is not a name for a new file or directory"));
  }
  FSDP_ASSIGN_OR_RETURN(const bool has_parent, IsThere(parts.directory));
  if (!has_parent) {
    return absl::NotFoundError(absl::StrCat("directory ", parts.directory, " does not exist; make it first"));
  }
  std::unique_ptr<StagedPath> staged(new StagedPath(files, parts.directory, parts.name, options));
  FSDP_RETURN_IF_ERROR(staged->Lock());
  FSDP_ASSIGN_OR_RETURN(const bool exists, IsThere(staged->destination_));
  if (exists && !options.overwrite) return absl::AlreadyExistsError(absl::StrCat(destination, " exists"));
  FSDP_RETURN_IF_ERROR(staged->Make(kind));
  return staged;
}

absl::Status StagedPath::Lock() {
  for (const std::string& hidden : {path_, probe_path_}) {
    // Another process creates its lock file first and removes it last, so check for it before and after `hidden`.
    FSDP_ASSIGN_OR_RETURN(const bool was_locked, IsThere(lock_path_));
    FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(hidden));
    if (was_locked || !is_there || files_.Exists(lock_path_)) continue;
    return absl::AlreadyExistsError(absl::StrCat(hidden, " exists, and was not left by a write of ", destination_,
                                                 " (that would have left ", lock_path_, " too): give it another name"));
  }
  absl::StatusOr<std::unique_ptr<File>> lock = files_.OpenLocked(lock_path_);
  if (absl::IsUnavailable(lock.status())) {
    return absl::UnavailableError(absl::StrCat(destination_, " is being made by another process"));
  }
  if (!lock.ok()) return Annotate(lock.status(), absl::StrCat(destination_, " cannot be written"));
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status StagedPath::Make(Kind kind) {
  for (const std::string& leftover : {path_, probe_path_}) {
    FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(leftover));
    if (is_there) FSDP_RETURN_IF_ERROR(RemoveTree(files_, leftover));
  }
  FSDP_ASSIGN_OR_RETURN(const bool exists, IsThere(destination_));
  if (exists && options_.overwrite) FSDP_RETURN_IF_ERROR(CheckCanExchange());
  if (kind == Kind::kDirectory) {
    FSDP_RETURN_IF_ERROR(files_.MakeDirectory(path_));
  } else {
    FSDP_ASSIGN_OR_RETURN(file_, files_.Create(path_));
  }
  made_ = true;
  return absl::OkStatus();
}

// Tests it with an exchange: no system call reports whether a file system supports RENAME_EXCHANGE.
absl::Status StagedPath::CheckCanExchange() {
  FSDP_RETURN_IF_ERROR(files_.MakeDirectory(path_));
  absl::Status status = files_.MakeDirectory(probe_path_);
  if (status.ok()) {
    status = files_.Exchange(path_, probe_path_);
    status.Update(files_.RemoveDirectory(probe_path_));
  }
  status.Update(files_.RemoveDirectory(path_));
  return status;
}

StagedPath::~StagedPath() {
  // The lock file is removed last: without it, another process could begin to write path_ while this one removes it. It
  // stays if some file could not be removed, as after a crash.
  if (made_) (void)RemoveTree(files_, path_);
  const bool is_clean = !files_.Exists(path_) && !files_.Exists(probe_path_);
  if (lock_ != nullptr && is_clean) (void)files_.Unlink(lock_path_);
}

absl::Status StagedPath::Commit() {
  if (file_ == nullptr) {
    FSDP_RETURN_IF_ERROR(files_.SyncDirectory(path_));
  }
  // Checked again: the destination may have been removed since Create, and an exchange needs both names.
  FSDP_ASSIGN_OR_RETURN(const bool exists, IsThere(destination_));
  const bool exchange = options_.overwrite && exists;
  FSDP_RETURN_IF_ERROR(exchange ? files_.Exchange(path_, destination_) : files_.Rename(path_, destination_));
  made_ = exchange;  // after an exchange, path_ is the replaced entry, and the destructor removes it
  return SyncNameOf(files_, destination_);
}

}  // namespace fsdp
